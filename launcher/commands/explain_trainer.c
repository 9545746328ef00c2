#include "launcher/commands/explain_table.h"

#include <stddef.h>

/* Messages of trainer, by what they are about. */
const struct explain_message explain_trainer[] = {
    /* --- the command line */
    {"holds more than * tensors\nthe entry of tensor\nfewer than are asked for",
     "a file of weights says more of itself than trainer takes, or than is in it: it is damaged, or no such file",
     "get the file again; load and save it with the program that made it"},
    {"a picture of * bytes", "a record of a data base says that its picture is larger than trainer takes",
     "is the data base damaged? write it again"},
    {"tells of * samples\ntells of sample", "ranks disagree about the samples that cannot be used: a fault of trainer",
     "are all nodes of one version? else please report it"},
    {"*metrics.jsonl can be written again; *", "its disk was full, or failed, for a while",
     "nothing is to be done; curves have a gap there"},
    {"*; lines are missing in this log until it can be written*", "the disk of the logs is full, or fails",
     "make room; metrics.jsonl goes on when it can be written"},
    {"is not a command; *\nis not supported", "trainer has no such command, or refuses this option of another trainer",
     "trainer --help lists the commands; docs/reference/personalities.md the options that are refused"},
    {"--num-channels *: must be 1 or 3\n--scale *: --input plain\nonly --input torch crops\n--mean and --std take\nexpected shares of 255\n"
     "--num-labels 1:\nis above MAX\n"
     "--min-bytes * is above\nranks: results are known for up to\nlearning-rate policy\n--lr-min * is above\nthe rate at the end, \n"
     "a run of * steps is shorter\nwarm-up of *\nstep size * of the step policy\ngamma * policy\npower * policy",
     "the value of an option is outside of what makes sense", "the message says what is expected"},
    {"--resume auto needs --checkpoint-dir\nneed --checkpoint-dir\n--evaluate needs --test-data\n--nesterov \n"
     "adam needs both\nscales the rate itself\n: over which ranks?\n: over which devices?\n--stages N cuts it\n"
     "--start-epoch *: the run has\n--ema *: an average\na folder is needed\na file name in --checkpoint-dir\n"
     "--checkpoint-name: *\n--comm-timeout 0\n--amp-dtype * needs\nis of use with\n--timeline-steps \n"
     "the timeline has no steps\n--save_dir needs\n--image_size * images are first scaled\n--batch_size * over\n"
     "--epoch_size * is less\nwhich one?\n--procs * goes with\n--data-parallel is for\nwhich pictures?\n"
     "exactly IN and OUT\na run is needed:\n--out needs the path\n--local-world-size *\n"
     "--resume leads to none\nparameters of * are frozen\n--drill-corrupt needs\n--loss-spike * needs\n--ema needs\nonly --schedule interleaved",
     "two options do not fit together, or one of them needs another", "the message names the option to add or to drop"},
    {"--sampler sharded: *\n--drop-last: *", "the samples cannot be divided among the ranks in this way",
     "another number of ranks or another batch size; --sampler global has no such limit"},
    {"--stage-cut*\ncannot hold a model over * stage\ncannot be split over * ranks\nno layer '*' (possible:\n"
     "such a model is not split over\nneeds a pipeline of one stage",
     "the model cannot be cut, or the ranks cannot be arranged, as the options ask",
     "one of the layers that the message lists; fewer stages or smaller groups; trainer plan shows the layout"},
    {"is of use: the checkpoint\n--arch * is of no use*\n--image-size * is of no use*\n--num-channels * is of no use*\n"
     "has * names, the model * classes\nit is taken as *",
     "a checkpoint knows its model, image size and classes; options for a bare file of weights contradict it",
     "leave the option out, or name a file of weights"},
    {"GiB are allowed here\nGiB are free on this machine",
     "a run needs more memory than its cgroup, this machine or ulimit -v allows",
     "--accumulate N cuts batches into N parts; or a smaller --batch-size, --image-size or --arch, --zero 3, fewer ranks a "
     "host, more memory"},
    {"--memory-limit is what\nis not TIME,GIGABIT\nis no line of them\nare not here to be measured\nare not here, so that their link\nplanning: measuring\n--memory-limit: nothing fits\nno plan for * ranks is possible",
     "the planner (--auto-parallel) lacks a value, or cannot read it",
     "the message has an example; docs/guide/planning.md"},
    /* --- data sets and images */
    {"holds no class folders\nholds no image\nholds no picture\nholds no record\nnames no class\nis no LMDB\n"
     "is no LevelDB\nis no IDX file\na * set without pictures\nholds one class",
     "the folder is not a data set of the kind that is expected", "docs/guide/data.md says what each kind looks like"},
    {"that the training data lacks\nthat the training data has twice\nis empty: each line names a class\n"
     "has a line break in its name\nclasses, the training data\nlabel * of a set of\ndoes not tell its number of classes\n"
     "): give --num-labels\n--num-labels allows\ntoo many class*\nhas too many classes",
     "training and test data, or the data and --num-labels, disagree about the classes",
     "the same class folders in both; classes.txt or --num-labels for data bases"},
    {"images could not be read or decoded and",
     "some images of the set are damaged: they weigh nothing in training, and are not counted in a test",
     "bad-samples.txt in the run's folder names them; remove or repair them, or --strict-data to end at the first one"},
    {"could be used: \n* counted in epoch *: each is of class",
     "no image of a set counts: all are damaged, or of the class that --ignore-index leaves out",
     "look at the files that are named; --strict-data ends the run at the first one"},
    {"cannot be made; the kinds of data sets\nname one kind of data set to make\ntext needs --text FILE",
     "trainer make-data makes two kinds of data sets",
     "trainer make-data shapes --out DIR, or trainer make-data text --text FILE --out DIR"},
    {"has no header of llm.c's\nhas llm.c's header, of\nof llm.c's * (expected\nand its header tells of\n"
     "(expected a multiple of *, --token-bytes)\nholds no file of tokens\ntokens (expected at least",
     "a file of tokens has another format or width than is expected, is cut short, or is not there",
     "docs/guide/data.md says what is read, and how such files are written"},
    {"(expected less than the vocabulary", "a token is no number of the model's vocabulary",
     "the tokenizer and the model belong together; without a header --token-bytes must be right, too"},
    {"bytes now, and had\ncannot look at '*\nbecame shorter while it was read",
     "a file of tokens changed while it was in use", "write files beside and rename them; resume the run"},
    {"as tokens: such a set is\n--data-format * are pictures\nis of no use with *, which reads\n"
     "reads tokens: trainer generate is\nreads pictures: trainer predict is\nsamples of * tokens, of a set\n"
     "reads *, and the data are\nand the model's rows are pictures",
     "the data are tokens and the model reads pictures, or the other way round; or an option is for the other of them",
     "--arch gpt2 reads tokens; docs/guide/data.md has their files"},
    {"takes any *: --* says which\n--num-labels *: the vocabulary of\n--token-bytes *: must be",
     "how many tokens a sample has, or how many different ones there are, is not said, or said twice",
     "the option that the message names; a checkpoint and most models say it themselves"},
    {"--tokens: '*' is no number\n--tokens: * (expected\n--prompt: * has a vocabulary\n"
     "either --prompt TEXT or --tokens\nthere is no token to continue",
     "trainer generate needs tokens to continue: as a text, of a model of bytes, or as numbers",
     "--prompt TEXT, or --tokens 1,2,3 with what the tokenizer of the model makes of a text"},
    {"its '*' is another than its\ndoes not hold queries, keys and values\n--huggingface needs a checkpoint\n"
     "is a bare file of weights: --arch\nis neither a GPT-2 nor a Llama\nit has no number '* above 0",
     "weights, or the config.json beside them, are not of the model that is named",
     "--arch with the config.json of these weights; docs/guide/checkpoints.md says what is read"},
    {"attn_pdrop is", "the model was trained with dropout on attention probabilities, which trainer does not do",
     "nothing is to be done; dropout elsewhere is that of config.json"},
    {"this build has no LMDB\nthis build has no LevelDB\nreads and writes no .pth\nwhich this build cannot read",
     "trainer was built without the library for this format",
     "install the -dev package that is named, and build again"},
    {"neither a JPEG nor a PNG\nmore than * scans\npremature end of file\nnot a whole JPEG\nnot a whole PNG\na PNG image*\na damaged P* header\n"
     "a P* image cut short\nthe file is empty\nan image of * pixels\nimages have 1 or 3 channels\nis left out:\n"
     "are left out:\nare left out so far\nsamples that were left out cannot be written\n"
     "trainer predict: '*' cannot be used\na file of more than\nimages of * pixels",
     "one image is damaged, of an unknown format, or too large", "it counts with weight 0; convert or remove it"},
    {"is cut short\nclaims * entries\nholds pictures of\nlabels for * pictures\na record of *\na record whose first tensor\n"
     "a Datum without\na Datum with float_data\na Datum that is not marked\nis damaged: its index\nbytes reach beyond the end\nthe record has gone\n(or .gz) does not exist",
     "a file of the data set is damaged or incomplete",
     "make the data set again: trainer make-db, or copy it once more"},
    {"is open in * which holds the lock", "another program uses the LevelDB and may change it",
     "end that program, or train from a copy"},
    {"lock.mdb' is a link or no regular file",
     "LMDB would write to where the file that lists readers leads; another user may have made it",
     "remove it; or keep writers away from the data while they are read"},
    {"no room for '*lock.mdb'", "an LMDB's readers are listed in a file beside it, and its disk is full",
     "free some space there, or read a copy on another disk"},
    {"LevelDB '\nLMDB '\nwrite the LevelDB\nwrite the LMDB\nthe disk is full\nexists already\nwas left by a make-db",
     "a data base cannot be read or written", "look at the path, the rights and the free space"},
    {"does not describe a shapes\nholds a data set made with\nwas not made by make-data\nchoose another --out\n"
     "classes of * pixels: 2 to\ntraining and * test images",
     "trainer make-data does not overwrite what it did not make, or cannot draw so much",
     "another --out, or smaller numbers"},
    {"lies more than * folders deep\nmore than * images\nthe path of *\nis too long\nare too long\npath is too long",
     "a name or a folder tree is larger than trainer takes", "shorter paths; remove loops of links"},
    {"loader thread is stuck\nno batch was ready\nis still being read\nno file is being read",
     "the disk or file server of the data set does not answer",
     "look at it; --loader-threads or --comm-timeout if it is only slow"},
    /* --- checkpoints and weights */
    {"another run that is still alive", "two runs write to one folder", "end the other one, or choose another folder"},
    {"holds a checkpoint of step\nholds a newer checkpoint",
     "the folder belongs to a run, which a new run does not overwrite",
     "--resume auto goes on; --if-checkpoint aside or another --checkpoint-dir begins anew"},
    {"is no file of weights", "a file of another kind, or one that is empty",
     "weights as .safetensors, or as .pth that torch.save() wrote; trainer convert makes one of the other"},
    {"no checkpoint found at\nno weights found at\nnames no checkpoint\na checkpoint has no file",
     "the path holds no complete checkpoint", "name the checkpoint folder, or a step-N folder in it"},
    {"which only Python could make\na class has no name\na persistent id\na tensor's arguments\nit calls what is no\n"
     "it sets attributes\nit holds too many values\nit ends early\nits stack is empty\na mark is missing\n"
     "an integer has more\nit remembers too much\nit recalls what\na key has no value\nsomething is added to\n"
     "it uses pickle's\na tensor is named by\nthe storage of '\nnot a tensor\na shape that is not made\nit holds * instead of a dict\n"
     "it holds no tensors\nbefore 1.6:\ninstead of floating-point numbers",
     "a .pth file holds more than tensors, or is damaged; trainer executes nothing in it",
     "in Python: torch.save(model.state_dict(), FILE)"},
    {"holds no sound checkpoint\nis passed over:\nis damaged: its CRC32C\nis not a sound safetensors\nits CRC32C is\n"
     "its manifest says\nits format is '*' instead\nits version is\nit is of step * instead\nthe manifest *\n"
     "member 'meta'\nits crc32c is *\nends at byte *, before its data\nhas no tensor '\nhas no entry '\nhas no shape\n"
     "has no dtype\nhas no data_offsets\nhas more than * dimensions\nthe shape of tensor\na tensor's name has\n"
     "needs * bytes, its offsets\nfewer than are asked for\nbegins at byte * of the data\nits header describes\nhas two tensors named\n"
     "overflows\na header of * bytes\nis * instead of *\nhas no possible size\nreads at most\n"
     "at most * can be read again\nits header goes on after\nit is shorter than 8 bytes\nmust be a JSON object\nis no sound zip\nentry '*' is\nstorage '*\nmore than * times as large\n"
     "none of torch.save()\non a big-endian machine\nreaches beyond its storage\nhas * dimensions",
     "a file of a checkpoint or of weights is damaged, incomplete, or of another format",
     "an older checkpoint (--resume auto passes damaged ones over), or copy the file again"},
    {"is no number: it goes wrong\nis no finite number\nis no printable character\n: braces do not match\nmore than * words\n"
     "there is no value '\nno number to count with\n' has a value already\nmore than * values at a time\nis no key: \n"
     "' is given twice\n=' has no value\n' is no name\n'in' is \nno operation above is\n' needs *=\nthe input's name is\n"
     "is the name of an operation\nis the first operation, and\nbehind the classifier\nmore than * operations\n"
     "more than * blocks\n'repeat' needs\na block has at most\n'block' needs a name\n' is a word already\n"
     "' has no value '\nhas nothing to read: \nnames within '\nneeds NAME=VALUE\nwith its repetitions\n"
     "longer than * bytes\n' is set in line\nstands within what begins\n'end' without\n'end' stands\nno 'end' follows\n"
     "that it could set\nnothing reads '\n reads *, and the data are \nreads tokens, and the model's rows\ntakes position * of *\nthe model ends \nthe most that a model may have\na model is text",
     "the text of a model is wrong, or too long; the message names the line",
     "correct that line of --arch FILE.net; docs/guide/models.md has the language"},
    {"the cuda device has no kernel for\nthe cuda device freezes whole\na convolution in groups of bf16 whose",
     "this device cannot run an operation of the model",
     "--device cpu; for a convolution in groups of bf16, --amp off"},
    {"the checkpoint's model has the sum\nits model has * elements",
     "the model in a checkpoint is not that of its weights: the checkpoint is damaged, or somebody changed it",
     "an older checkpoint, or the one from which this one was copied"},
    {"the checkpoint is of arch\nthe checkpoint is of --net-style\nis another than this run's\n' is '* here\n"
     "the checkpoint has * this run\n"
     "the checkpoint was trained\nin the checkpoint and '*' in the training set\nthe checkpoint is in the middle\n"
     "the checkpoint keeps an average\nits tensor '*' is",
     "the checkpoint was made with a model, classes or an order of samples that do not fit this run",
     "the same options as that run; docs/guide/checkpoints.md says what may differ"},
    {"was * and is now *\nit begins without momentum\nthe optimizer begins without momentum\nthe loss scale begins anew\nplanned anew, results may\n"
     "computes with another engine\nsays * epochs in its name",
     "the run goes on with other settings than before; results may differ from an undisturbed run",
     "nothing, if that is what you want"},
    {"stays at its initial value\nis not there and stays at its initial\nis no part of this model",
     "the weights were made for another last layer, or hold more", "nothing, if you train the last layer anew"},
    {"it has no tensor '\nit is of *, this model is\ntensors of *: is it of another",
     "the weights lack a part of this model", "weights of the same --arch"},
    {"its classes are *meant\nholds one class, '", "the classes are called as the parts of a data set are",
     "the folder of one part, whose folders are the classes"},
    {"pictures: a step takes", "the batch is larger than the training set",
     "a smaller --batch-size, with the learning rate that goes with it"},
    {"ranks is cut into * parts", "a part has a picture for each rank at least, and all but the last are of one size",
     "fewer parts, or a larger batch"},
    {"random weights are evaluated", "--evaluate has nothing to evaluate but the weights that a run begins with",
     "--resume auto, --resume FOLDER or --pretrained FILE"},
    {"the model will not be saved\nthe model was not saved", "there is no --checkpoint-dir", "--checkpoint-dir DIR"},
    {"is still being written\nis saved, but\nis the best so far, but\nolder checkpoints are not removed\n"
     "no checkpoint is saved:\nno checkpoint is written:\nsend the checkpoint\nwhat other ranks save\n"
     "; training goes on\ntraining goes on",
     "a checkpoint or a log was not written as planned; training goes on", "look at the disk of that folder"},
    {"no step follows: it is tried once more\nthe end of the run is not saved",
     "the last checkpoint cannot be written, and the run ends with 73 if one more try fails, too",
     "free some space, start again: --resume auto goes on from the newest checkpoint that is whole"},
    {"cannot use its checkpoint folder\ncould not load\nannounces * bytes\nan impossible piece",
     "one rank cannot read what the others read", "the same folder on all nodes, with the same rights"},
    {"the checkpoints of an older run in", "--if-checkpoint aside renamed the folder of an older run", "nothing"},
    {"ends neither in .safetensors\ntensor '*' cannot be stored\na tensor cannot be named\ntensor '*' has an impossible\n"
     "tensor '*' has no data\nthe tensors exceed\ntwo tensors are named\nthe header of * tensors\nsteps count from 0",
     "these weights cannot be written in the format that is asked for", "OUT ends in .safetensors, .pth or .pt"},
    /* --- training */
    {"training diverged*\ndiverged: *\nthe test loss of epoch * is",
     "the loss is not a number, or above --max-loss: the rate is too high, or data are broken",
     "a lower --base-learning-rate; --warmup-epochs; with fp16 --loss-scale dynamic"},
    {"gradients overflowed", "fp16 could not hold the gradients; the step is skipped and the loss scale halved",
     "nothing, unless it happens at every step: then --amp bf16"},
    {"replicas differ", "ranks hold different weights, which must not happen",
     "look for broken memory or different builds; please report it"},
    {"step *: *; back to step *, and on from there\nstep *: *; believed only if a replay comes to the same\nsilent corruption in rank",
     "bits of a rank were wrong, or a loss is not believed: all ranks do the steps since the last comparison again",
     "docs/guide/corruption.md"},
    {"the replay of steps * to * came to something else on all ranks at once*\n"
     "the replay of steps * to * came to the same bit for bit*",
     "what a replay of the last steps showed: sums were wrong and are mended, or the loss was right",
     "nothing; if it happens often, test memory and processors of the nodes"},
    {"; another process takes its place\n; it stays, as nobody would take its place",
     "what becomes of the rank whose bits were wrong", "a node that does this again has bad memory or a bad processor"},
    {"*, at the end of * replays as well: this is no bit that flips now and then",
     "replicas differ after each replay: it is no accident",
     "test the memory of that rank's node; look for different builds"},
    {"ranks hold parts of the model: what there are copies of is compared*\n"
     "--zero *: moments* have one owner each, so a bit that flips in them is not seen\n"
     "--check-replicas *: one rank has nobody to compare",
     "what --check-replicas cannot see or mend in this layout", "docs/guide/corruption.md"},
    {"a bit of this rank's * flips in step *\none of this rank's sums becomes no number in step *\n"
     "--drill-corrupt: * elements are 0*\n--drill-corrupt *: expected a rank\n'*' is not WHAT@STEP:RANK*",
     "a drill of --drill-corrupt", "docs/guide/corruption.md"},
    {"stopped at step\nending: not all ranks\nstopped (*) while no round", "the run was stopped before its end",
     "start it again with --resume auto"},
    {"--network *: nothing is predicted here\n--stages *: --model_parallel is two of them",
     "an option serves nothing here, or contradicts another one", "leave it out; the message says what it serves"},
    {"settle on a step\nhand over the state\nwait for the next round\nwait for holds\nconnections of * ranks were given up\n"
     "the sums of a step are not whole\nan update was enqueued in part\nthis rank has no state any more",
     "a rank died while the others agreed how to go on", "crun restarts all from the newest checkpoint"},
    {"rank * is lost, and no other rank has\nrank * and rank *, which had its part of the state as well\n"
     "rank * needs element * of the model, which no rank has\n"
     "*: all ranks go back to the newest checkpoint",
     "ranks died that were the only ones with a part of the state: all go back to the newest checkpoint",
     "save more often (--checkpoint-every), or spread ranks over more nodes"},
    {"there is no checkpoint to go on from: begins again", "the job was restarted before anything was saved",
     "--checkpoint-dir, and save more often (--checkpoint-every)"},
    {"recovery: when a rank dies all start again", "no other rank has what a rank of this layout has",
     "what the line names, if restarts cost too much"},
    {"--replicate-state *: without --zero\n--replicate-state *: on a GPU",
     "there is nothing that a second owner would be of use for", "leave --replicate-state out"},
    {"--memory-checkpoints: *: nothing is kept\nno copy of step * is in memory",
     "the state cannot be kept in the memory of the node",
     "what the line says: start trainer with crun; give the node (or its container) room for two copies of the state"},
    {"--memory-checkpoints *: on a GPU only where", "parts of the state are not taken up from memory on a GPU",
     "leave --memory-checkpoints out, or --zero, --stages and --model-parallel-size"},
    {"ranks of this run do not take one another's places", "with these options ranks hold parts: spares are of no use",
     "leave --warm-spares out"},
    {"--cache-decoded *: the table of\n--cache-decoded *: this machine has",
     "the cache of decoded pictures has no use or no room",
     "another size, or leave --cache-decoded out (docs/guide/data.md)"},
    {"*: this rank keeps decoded pictures by itself\n'*' tells of no cache\nprocess * has no decoded pictures",
     "this rank could not share the node's cache: it keeps its part of the pictures by itself",
     "nothing, if memory is enough; else look at the cause, which the line names"},
    {"decoded pictures are there already\nare there already\nwere kept", "how much of --cache-decoded is used",
     "nothing"},
    /* --- ranks and collectives */
    {"ranks did not come within\ndid not come to\nnot all of the other * ranks came",
     "some ranks did not start, or cannot reach the place where ranks meet",
     "look at the ranks that are named; all need the same address, --run-id and number of ranks"},
    {"an address of family\nreceiving from any rank is not used\nwaiting without an operation\nthe socket of the connection with rank\n"
     "its other side has not been begun\nthe other side has one of",
     "a collective of gloo was begun in a way that the other ranks do not follow",
     "the same version and the same options on all ranks; else please report it"},
    {"went away\nno answer within\nno answer from rank\nhas failed on rank\nthe communicator has failed\n"
     "the communicator was aborted\nno connection with it was made\nthe connection with it from\nno mesh on",
     "a rank died, hangs or cannot be reached: collectives end on all others",
     "read what that rank said; --comm-timeout if it was only slow"},
    {"was started for a world of\nbelongs to another user: choose\nis not what rank 0 writes\nanother user has taken",
     "ranks of different runs met", "another --run-id for each run"},
    {"no route to rank\nis not an address of this machine\nthe local address '\nis meant by it",
     "the network interface that was chosen does not reach the other ranks", "name another one; ip addr lists them"},
    {"a launcher has started\nis named twice\n--gpus: more than", "ranks are counted by the launcher and by an option",
     "leave out the option that the message names"},
    {"nothing tells where rank 0 is\na multicast address\nare not both set\nneed a place to meet\nmay serve several runs\n"
     "needs --run_id: a name\nset MASTER_ADDR\nset both or neither\nPMI_SIZE is *\n--shard_id *\nmachines are counted\n"
     "machines of -n\n--rank * needs\n--world-size * needs\n--local-rank *, but",
     "without crun, ranks on several machines need an address and their numbers",
     "start them with crun, or set what the message names"},
    {"machines meet in /tmp",
     "ranks of several machines look for each other in a folder that each machine has for itself",
     "--redis_host HOST, or --file_store_path with a folder that all machines share; or start them with crun"},
    {"is meant for a global batch of",
     "--base_learning_rate of resnet50_trainer.py belongs to a batch of 256 images over all ranks, and this run's is another",
     "the rate that the line names, or --lr-scale batch256; nothing, if you chose the rate for this batch"},
    {"Dummy data is used", "--dummy makes up images: speed can be measured, and nothing is learnt",
     "leave --dummy out"},
    {"You have chosen a specific GPU", "--gpu of main.py takes one GPU, and no other rank is started",
     "leave --gpu out to use all GPUs"},
    {"trainer: rank * was killed\ntrainer: rank * ended with\ntrainer: rank * has not ended",
     "a process that trainer had started failed, so the others were ended", "read what that rank said before"},
    {"there are no collectives named\nthis build has no gloo\nthis build of the cuda module has no NCCL\nnccl moves\n"
     "the local collectives are",
     "this build or this device cannot use that kind of collectives",
     "--comm auto, or the kind that the message names"},
    {"NCCL: *\nall ranks need the same libnccl\nwhich NCCL refuses",
     "NCCL cannot connect the GPUs, or one of them hangs",
     "the message says what differs; NCCL_DEBUG=INFO shows more; --comm gloo to compare"},
    /* --- devices */
    {"no NVIDIA driver is installed\nthe GPU module *\ntrainer's GPU module*\n) is not installed: it is Debian's\n"
     "no GPU can be used\nis no GPU module\nis of trainer * (ABI\ncannot use GPU\nno GPU is usable",
     "there is no GPU, no driver, or a library of NVIDIA is missing", "docs/start/gpu.md; --device cpu"},
    {"can be used here", "other GPUs were asked for than there are", "--gpus; CUDA_VISIBLE_DEVICES"},
    {"start fewer, or give each its own", "two ranks compute on one GPU, whatever each calls it",
     "--nproc-per-node gpu; --virtual-local-rank or Slurm's --gpus-per-task; --oversubscribe to share"},
    {"MiB of GPU memory\npage-locked memory\nwants * bytes of workspace",
     "the GPU or the host has too little free memory",
     "a smaller --batch-size, --accumulate N, --amp bf16; ulimit -l for page-locked memory"},
    {"is wrong and never taken again\nis barred for\nis barred:\nruns on this GPU*\ndoes not run on this GPU\n"
     "has no engine for\ncannot be left out\nhas other bits when it runs again\n"
     "is not deterministic or not precise\ncached plan: *\n--plan-cache: *\nwas chosen with cuBLASLt *\n"
     "a product's *\ncuBLASLt is left for\n* for * is not deterministic",
     "one of cuDNN's or cuBLASLt's ways to compute a layer cannot be taken here; another one is",
     "nothing; a report is welcome"},
    {"cuDNN: *\ncuBLASLt: *\ndevice properties\na plan's *\na record * an engine\na list of plans\nit is of another graph\n"
     "a trial of *\nare unwritten or no numbers\nis allowed\nfirst of this step that are no numbers\n"
     "cannot be captured as a graph",
     "a library of the GPU failed, or a result is wrong", "trainer gpu-doctor, and send its gpu-doctor.txt"},
    {"the host has waited", "the GPU has not finished for long", "nvidia-smi; the message names the operation"},
    {"device computes in\na convolution in groups of\nkeeps batch norm in fp32\nhas a memory format of its own\nhas a format of its own\n"
     "is not built for the * device\nis there\nconvolutions in *\nthere may be a GPU here",
     "this device does not support what was asked for", "the message names what it supports; --device"},
    {"oneDNN*", "oneDNN failed on this processor", "ONEDNN_VERBOSE=1 shows why; --device ref to compare"},
    {"no time was left to begin it", "gpu-doctor's --budget was over before this rung; those before it hold",
     "a larger --budget"},
    {"it did not end in time\nexit status *\nits last loss is*",
     "a rung of gpu-doctor failed, or was cut off by --budget", "gpu-doctor/gpu-doctor.txt has everything to send"},
    /* --- logs, plots, the demo */
    {"gnuplot*", "trainer plot needs the program gnuplot", "apt-get install gnuplot-nox"},
    {"can be distinguished\nholds no training step\nis not a JSON object\nthis log is incomplete\n; it ends here\n"
     "the rest is left out\ncut * back\nnames of the next minute\ncannot be part of a file name\nan event has * bytes\n"
     "--debug-batch-sha",
     "a log cannot be written to its end, or is no log of trainer", "look at its disk; name a log folder of a run"},
    {"trainer demo*\ncannot be run as crun\ncrun was found neither\ninstall it (Debian's package crun-launcher)",
     "the demo did not find crun, or its job failed", "OUT/output has what the job said"},
    {"the result cannot be written to standard output\nstandard output cannot be written",
     "standard output is closed or full", "look at where the output goes; everything else is done"},
    {NULL, NULL, NULL},
};
