"""A GPT-2 and a Llama with random weights give the same numbers here and in Hugging Face's PyTorch models.

Dropout 0, plain SGD at rate 0.01, random tokens, some labels -1 (there -100). On ref in double precision everything is within 1e-10 of PyTorch
in float64 at the first step, relative to each tensor's largest value, and within 1e-9 after twenty steps. On cpu in fp32 logits are within 1e-4,
and twenty losses in fp32 and bf16 are as close to those of float64 as PyTorch's own runs are to each other.
Hugging Face's RMS norm and rotary embedding compute in fp32 whatever the model's type is: for float64 they are replaced by their definitions."""
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from support import BUILD, ROOT

STEPS, BATCH, LENGTH, VOCABULARY = 20, 4, 48, 211
WIDTH, LAYERS = 128, 4
SETS = {"gpt2": f"set width={WIDTH} layers={LAYERS} heads=4 context=64 vocabulary={VOCABULARY}\n",
        "llama": f"set width={WIDTH} layers={LAYERS} heads=8 kv_heads=2 mlp=344 context=64 vocabulary={VOCABULARY} eps=1e-5\n"}


class Norm(torch.nn.Module):
    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = weight, np.float32(eps).item()  # as here: eps is single precision

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Rotary(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x, position_ids, **_):
        inverse = 10000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = position_ids[..., None].double() * inverse
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def gpt2(attention="eager"):
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=LAYERS, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation=attention)
    for m in model.modules():
        if isinstance(m, torch.nn.LayerNorm):
            m.eps = np.float32(1e-5).item()
    return model


def llama():
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=344, num_hidden_layers=LAYERS,
                                      num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")  # the other one takes the softmax in fp32
    model.model.rotary_emb = Rotary(WIDTH // 8)
    for name, m in list(model.named_modules()):
        if name.endswith("norm"):
            model.get_submodule(name.rpartition(".")[0]).__setattr__(name.rpartition(".")[2], Norm(m.weight, 1e-5))
    return model


def as_here(tensors):
    """Conv1D's weights transposed, q, k and v together."""
    out = {}
    for name, v in tensors.items():
        if "k_proj" in name or "v_proj" in name or name == "lm_head.weight" and "transformer.wte.weight" in tensors:
            continue
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            v = v.T
        if "q_proj" in name:
            v = torch.cat([tensors[name.replace("q_proj", k)] for k in ("q_proj", "k_proj", "v_proj")])
            name = name.replace("q_proj", "qkv_proj")
        out[name] = v.contiguous()
    return out


class Case:
    def __init__(self, arch, folder):
        self.arch, self.folder = arch, folder
        torch.manual_seed(11)
        self.model = {"gpt2": gpt2, "llama": llama}[arch]
        self.state = {k: v.clone() for k, v in self.model().state_dict().items()}
        for v in self.state.values():  # biases and scales that are 0 and 1 would hide what is wrong
            if v.ndim == 1:
                v += 0.1 * torch.randn_like(v)
        if "transformer.wte.weight" in self.state:
            self.state["lm_head.weight"] = self.state["transformer.wte.weight"]
        self.tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH))
        self.labels = torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH))
        self.labels[:, 1, 5:9] = -1
        self.counts = (self.labels >= 0).sum((1, 2))
        folder.mkdir(exist_ok=True)
        safetensors.torch.save_file(as_here(self.state), folder / "weights.safetensors")
        self.tokens.to(torch.int32).numpy().tofile(folder / "images")
        self.labels.to(torch.int32).numpy().tofile(folder / "labels")
        (folder / f"{arch}.net").write_text((ROOT / f"worker/model/nets/{arch}.net").read_text() + SETS[arch])

    def here(self, device, logits=False, steps=STEPS):
        (self.folder / f"{device}.safetensors").unlink(missing_ok=True)
        subprocess.run([BUILD / "tests/peer/steps", device, self.folder / f"{self.arch}.net", str(-LENGTH if logits else LENGTH), str(VOCABULARY),
                        str(BATCH), str(steps), "2", "0", self.folder], check=True, timeout=600)
        return {k: v.numpy() for k, v in safetensors.torch.load_file(self.folder / f"{device}.safetensors").items()}

    def torch(self, dtype, steps=STEPS, threads=2):
        torch.set_num_threads(threads)
        model = self.model()
        model.load_state_dict(self.state)
        model = model.to(dtype).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        out, losses = {}, []
        for k in range(steps):
            logits = model(self.tokens[k]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.labels[k].flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            if k == 0:
                out["logits"] = logits.detach().transpose(1, 2).double().numpy().ravel()
                grads = {name: p.grad * self.counts[0] for name, p in model.named_parameters()}
                out.update(("grad." + k, v.double().numpy()) for k, v in as_here(grads).items())
            losses.append(loss.item())
            optimizer.step()
        out["losses"] = np.array(losses)
        out.update((k, v.double().numpy()) for k, v in as_here(model.state_dict()).items())
        return out


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def case(request, tmp_path_factory):
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def largest(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def worst(got, expected, prefix):
    names = [k for k in expected if k.startswith(prefix)] if prefix else [k for k in expected if "grad." not in k and k not in ("losses", "logits")]
    assert len(names) > 30 and set(names) <= set(got)
    return max((largest(got[k].reshape(expected[k].shape), expected[k]), k) for k in names)


def test_ref_equals_float64(case):
    exact = case.torch(torch.float64)
    for logits in (True, False):
        got = case.here("ref", logits)
        assert ("logits" in got) == logits
        gradient, of = worst(got, exact, "grad.")
        after, first = worst(got, exact, None)[0], largest(got["losses"][:1], exact["losses"][:1])
        losses, values = largest(got["losses"], exact["losses"]), largest(got["logits"], exact["logits"]) if logits else 0
        print(f"{case.arch}, {'whole' if logits else 'fused'} head, ref against float64: logits {values:.1e}, first loss {first:.1e}, gradients "
              f"{gradient:.1e} ({of}), {STEPS} losses {losses:.1e}, weights after them {after:.1e}")
        assert values <= 1e-10 and first <= 1e-10 and gradient <= 1e-10 and losses <= 1e-9 and after <= 1e-9


def test_cpu_logits_are_close(case):
    exact = case.torch(torch.float64, 1)
    for logits in (True, False):
        got = case.here("cpu", logits, 1)
        gradient, of = worst(got, exact, "grad.")
        values, loss = largest(got["logits"], exact["logits"]) if logits else 0, largest(got["losses"], exact["losses"])
        print(f"{case.arch}, {'whole' if logits else 'fused'} head, cpu in fp32 against float64: logits {values:.1e}, loss {loss:.1e}, gradients "
              f"{gradient:.1e} ({of})")
        assert values <= 1e-4 and loss <= 1e-5 and gradient <= 1e-3


def losses_of(case, kind, attention):
    """PyTorch's: in fp32; through autocast; or all in bf16, with weights in fp32 that are updated."""
    model = gpt2(attention)
    model.load_state_dict(case.state)
    model.train()
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.01), []
    for k in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            halves = {n: v.bfloat16() for n, v in model.named_parameters()} if kind == "bf16" else {}
            logits = torch.func.functional_call(model, halves, (case.tokens[k],)).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), case.labels[k].flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return np.array(losses)


@pytest.mark.parametrize("device, kinds", [("cpu", ["f32"]), ("cpu-bf16", ["autocast", "bf16"])])
def test_cpu_losses_are_as_close_as_pytorch_to_itself(tmp_path, device, kinds):
    case = Case("gpt2", tmp_path)
    exact = case.torch(torch.float64)["losses"]
    curves = {f"{kind}, {attention}": losses_of(case, kind, attention) for kind in kinds for attention in ("eager", "sdpa")}
    spread = max(np.abs(a - b).max() for a in [exact, *curves.values()] for b in curves.values())
    ours = np.abs(case.here(device)["losses"] - exact).max()
    print(f"gpt2, {device}: {STEPS} losses {ours:.1e} (spread of PyTorch {spread:.1e}: "
          + ", ".join(f"{k} {np.abs(v - exact).max():.1e}" for k, v in curves.items()) + ")")
    assert ours <= spread
