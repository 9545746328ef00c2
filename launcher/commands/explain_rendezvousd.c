#include "launcher/commands/explain_table.h"

#include <stddef.h>

/* Messages of rendezvousd, of a crun that hosts in its place, and of the stores. */
const struct explain_message explain_rendezvousd[] = {
    /* --- who may come in */
    {"refused peer=*\nmore peers were refused\nuid * is not\nbelongs to no member\nno token file, so peers\n"
     "has authenticated\nbut may use keys only\nsaw our proof and left",
     "somebody without the right token, user or address connected",
     "the same token file for those who may; else look who it is"},
    {"not authenticated within",
     "a peer connected and did not prove its token in time, or before its place was needed for another",
     "is the network slow? --auth-timeout; else look who connects and says nothing"},
    {"wrong * for principal\ndoes not hold the secret\nthe nonce is not\nthe answer to STORE.AUTH\n"
     "a part of the proof\nHMAC-SHA256 failed",
     "the two sides hold different secrets for one principal", "copy the token file from one to the other"},
    {"is no longer in the token file", "SIGHUP read a token file without this principal",
     "add the line again if it was a mistake"},
    {"connections of this address", "one address has more connections than --max-clients-per-address allows",
     "raise the limit, or look what connects there"},
    {"connections, the most it may have", "one principal has more connections than --max-clients-per-principal allows",
     "raise the limit, or look what connects with this token"},
    {"plain AUTH is off", "a Redis client sent its password as it is",
     "--allow-plain-auth, on loopback or over TLS only"},
    {"which cannot authenticate\nbegins no request of this generation\nno server of PyTorch's TCPStore",
     "a client of PyTorch's store speaks another protocol, or may not connect here",
     "workers use the store of their round, not the rendezvousd; ?generation=1 for torch 1.13"},
    {"is another principal's\nis unknown here\nseveral principals have a run",
     "the job belongs to somebody else, or is not there, or several have one of that name",
     "the token of its owner; another --rdzv-id; --principal of crun admin"},
    {"is no operator", "crun admin is for the operators of a rendezvousd",
     "their token (--token-file); rendezvousd --operators names them"},
    {"evicted the job\nis evicted by", "an operator of the rendezvous ended the job with crun admin evict",
     "ask the operator that is named"},
    {"a newer connection stands for\nthis connection stands for\nhas no part in it any more",
     "the node connected a second time; the newer connection counts", "nothing: crun dials again"},
    {"the user of a connection\nthe peer of a connection\nthe own end of a connection\nthe peer is on another host\n"
     "the peer closed its connection\nthe kernel does not tell",
     "the kernel did not say who is at the other end", "a token file, if peers come from containers"},
    /* --- the rendezvous */
    {"jobs of a shared rendezvous need an id", "a job has the name '', none or default, which strangers may have too",
     "--rdzv-id NAME"},
    {"one job too many\none too many for run\ndoes not fit into run\nJOINs within\nthe most there can be",
     "a limit of the daemon is reached", "--max-jobs, --max-jobs-per-principal, --max-nodes, --max-job-memory"},
    {"is unknown: it has not joined\nhas joined no job\nno job of this run id\nwhich is unknown\nis not a member of round\n"
     "cannot join\nis a member of round\nthe current one is\nwhich has not begun\nimpossible round\ncomes too late\n"
     "the rendezvous refused a request\nhas not failed",
     "the node is no part of the round that it names: it was given up, or the job went on without it",
     "nothing: crun ends its workers and joins again"},
    {"may still be alive\nit is waited for", "a job of this name ended a moment ago; its last workers may still run",
     "wait some seconds, or another --rdzv-id"},
    /* --- the state directory */
    {"is in use by another rendezvousd", "two daemons have one state directory",
     "stop the other one, or another --state-dir"},
    {"its format is *, but\nis of an older version of crun",
     "another version wrote what a rendezvous keeps; it is left as it is",
     "the version that wrote it, or one of a release later; another --state-dir or --rdzv-id begins anew"},
    {"job log '*\nit has * bytes, more than\nits first line is not\nrecord * at byte\nends within a record\n"
     "it holds no record of a job\na line has no good field\na line of no node\n"
     "which no version writes\nthere is no state=\nthere is no id=\nthere is no age=\nit begins with no word\n"
     "line * has no end\nfield '*\nfield *=*\nthe event has no kind=\nthe news have no kind=\nis missing\n"
     "an entry of another kind\nholds something else\nis damaged",
     "a log of decisions is damaged; that job is forgotten, the others go on",
     "look at the disk; the file is kept as .damaged"},
    {"will not outlive this daemon\nthe job goes on, but",
     "the state directory cannot be written: jobs go on in memory",
     "make room, or correct the rights: logs are written again within 30 s"},
    {"is written again: the job outlives", "the state directory could not be written for a while", "nothing"},
    {"the log of job * cannot be removed",
     "a log lacks what was decided last, and the state directory does not let it go",
     "correct the disk or the rights while rendezvousd runs, or remove the file before it starts again"},
    {"state directory * has not answered\nwaited for no longer\nthe process that writes the state",
     "the disk of the state directory or folder hangs", "look at the disk; heartbeats and stops go on meanwhile"},
    {"state directory *\nthe process that has the shared folder\nthe process that opens the shared folder",
     "the folder of a rendezvous cannot be used", "look at its path, rights and disk"},
    {"another user's job has this run id", "somebody else's job in this folder has the same name", "another --rdzv-id"},
    /* --- a Redis */
    {"may lose what it acknowledged\nno replica of this Redis\ndoes not say which incarnation",
     "this Redis may forget writes after a failover; a job over it could run twice",
     "min-replicas-to-write of half the replicas on all; --rdzv-conf allow_unsafe=1 takes the risk"},
    {"sentinel*\nnames *:*, which is no primary\nlives on another node of the cluster",
     "the Redis is a replica, a cluster or behind a sentinel, and the URL does not say so",
     "redis+sentinel://HOST/NAME, or the address of the primary"},
    {"a user, but no password", "the URL of a Redis names a user, and nothing holds a password",
     "CRUN_REDIS_PASSWORD_FILE; redis://:PASSWORD@HOST where only a password was meant"},
    {"connection to the Redis\nthe connection's own address", "the Redis is out of reach",
     "is it up, the address right, the port open?"},
    {"EXEC: nil\nthe server says: *\na reply of type\nmalformed reply\na reply exceeds",
     "the server answered something unexpected", "is it a Redis 5 or newer, or a rendezvousd, that listens there?"},
    /* --- listening, TLS, HTTP */
    {"trying again for * s",
     "another process has the port, often a crun that hosts a job in the daemon's place; the daemon waits for it",
     "ss -ltnp shows who listens; --rdzv-backend rendezvousd keeps a crun from hosting; --port-timeout"},
    {"a crun may host on the port", "the mark of the port cannot be written to RUNTIME_DIRECTORY",
     "RuntimeDirectory= of systemd, or a folder that the daemon may write"},
    {"cannot listen on\ncannot listen\ncannot accept connections\na listener\nthe server is closing",
     "the address is taken, or not one of this machine", "another --port or --bind; ss -ltnp shows who listens"},
    {"no client can be accepted\nfiles may be open", "too few descriptors for so many clients",
     "ulimit -n, LimitNOFILE= of systemd"},
    {"the kernel lets * connections wait", "a burst of agents fills the kernel's queue",
     "sysctl net.core.somaxconn=4096"},
    {"SIGHUP: *", "tokens and certificates were read again, or could not be", "correct the file and send SIGHUP again"},
    {"port file *\n--ready-fd *\nNOTIFY_SOCKET *\nsignal * cannot be watched\nno event loop",
     "the daemon cannot report that it is ready to whoever started it", "look at the path or descriptor that is named"},
    {"is no name that a certificate\ncertificate is refused\nTLS:", "the other side's certificate is not trusted",
     "docs/guide/tokens-and-tls.md has a recipe; --rdzv-ca FILE"},
    {"beyond loopback readers must show a token\nfor HTTP\nHTTP (libmicrohttpd\nlibmicrohttpd does not start",
     "the HTTP port cannot be opened as asked", "--http-token-file FILE; install libmicrohttpd"},
    /* --- clients and the store */
    {"client * closed: *\nProtocol error*\nout of step\nbefore it has authenticated",
     "a client broke the protocol, or a limit, and was disconnected",
     "is it meant to speak RESP? docs/reference/protocol.md"},
    {"certificate '*' cannot be used\nprivate key '*' cannot be used\nprivate key (it does not\nauthority '*' cannot be used",
     "a file of TLS is not there, may not be read, or is no certificate or key in PEM",
     "openssl x509 -in FILE -noout -text, openssl pkey -in FILE -check; the user of the daemon must be able to read them"},
    {"cannot reach *: the server closed the connection\nport *: the server closed the connection",
     "what listens there ended the connection without a word: it is no rendezvous (the HTTP port of rendezvousd, say), it "
     "speaks TLS only, or it is ending",
     "the port that rendezvousd prints when it is ready (29400), not --http-port; --rdzv-tls where it has a certificate"},
    {"the server closed the connection\nanother thread's request\nnot there after * ms\nthe deadline passed\n"
     "the store was aborted\nthe name was used before\nno such key\nis not an integer\nfits no 64 bits\nfit 64 bits\n"
     "holds another kind\nthere is no key\nan integer of 64 bits\na request of * bytes is too large\na URL has at most\n"
     "exceeds what the buffer\na value of * bytes",
     "a call to the key-value store of the workers failed", "was the job stopped? else look at the key that is named"},
    {"host '*\nmore than * hosts", "the name of a host cannot be resolved",
     "look at DNS and /etc/hosts on this machine"},
    {"node '*' addresses\nan address holds a byte", "a node sent an address that is none",
     "the same version everywhere"},
    {NULL, NULL, NULL},
};
