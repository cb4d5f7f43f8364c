"""Run folders and checkpoints."""

import json
import subprocess

import ml_dtypes
import numpy as np
import pytest

import octet
from octet import binary

SMALL = ["model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48", "data.seq=32", "train.micro_batch=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    data = path.parent / "text.txt"
    data.write_bytes(bytes(range(32, 127)) * 400)
    command = [binary(), "train", "--out", path, "--data", data, "--steps", "6", "--recipe", "fp8-smooth", "checkpoint.every=3", "train.health_every=2"]
    subprocess.run([str(c) for c in command] + SMALL, check=True, capture_output=True)
    return path


def test_metrics(run):
    r = octet.open(run)
    assert (r.step, r.steps, r.state, r.problems) == (6, 6, "done", [])
    assert r.config["data.seq"] == "32" and r.backend == "emu"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    want = {x["step"]: x["loss"] for x in lines if "loss" in x}
    assert r.metrics["loss"].steps.tolist() == sorted(want)
    assert r.metrics["loss"].values.tolist() == pytest.approx([want[s] for s in sorted(want)])
    assert "tokens_per_s" in r.timing
    assert any(len(fields) > 3 for fields in r.casts.values())
    assert "layers.0" in r.channels and "layers.0" not in r.casts
    assert r.version == octet.version() and r.alarms == []


def test_alarms_and_problems(run, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with (copy / "run.log").open("a") as log:
        log.write('{"time":"2026-01-02T03:04:05Z","level":"WARN","msg":"loss spike","step":4}\n')
    with (copy / "metrics.jsonl").open("a") as metrics:
        metrics.write("no JSON\n")
    r = octet.open(copy)
    assert len(r.alarms) == 1 and r.alarms[0][0] == 4 and "loss spike" in r.alarms[0][1]
    assert len(r.problems) == 1 and "metrics.jsonl" in r.problems[0]


def test_checkpoints(run):
    r = octet.open(run)
    assert r.checkpoints == [3, 6] and not r.damaged
    c = r.checkpoint()
    assert c.state["step"] == 6 and c.config["hidden_size"] == 32
    embedding = c["model/model.embed_tokens.weight"]
    assert embedding.shape == c.shapes["model/model.embed_tokens.weight"]
    assert np.array_equal(c.weight("model/model.embed_tokens.weight"), embedding.astype(np.float32))
    assert any(d.startswith("e") for d in c.dtypes.values()), "FP8 moments"
    for name, dtype in c.dtypes.items():
        x = c[name]
        assert x.shape == c.shapes[name]
        if dtype == "e4m3":
            assert x.dtype == ml_dtypes.float8_e4m3fn
    assert not np.array_equal(embedding, r.checkpoint(3)["model/model.embed_tokens.weight"])


def test_safetensors_agrees(run):
    path = octet.open(run).checkpoint().path
    raw = open(path + "/model.safetensors", "rb").read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    c = octet.open_checkpoint(path)
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            assert c["model/" + name].tobytes() == raw[8 + size + start:8 + size + end]


def test_a_checkpoint_is_a_mapping(run):
    c = octet.open(run).checkpoint()
    assert len(c) == len(list(c)) == len(c.dtypes) and next(iter(c)) in c and "model/none" not in c
    assert c == c and c != octet.open(run).checkpoint() and hash(c)
    assert len(repr(c)) < 300 and len(repr(octet.open(run))) < 300


def test_weights_are_codes_times_scale_inv(tmp_path):
    """A Hugging Face folder with an FP8 weight, which transformers reads as code · weight_scale."""
    dim, vocabulary = 32, 64
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim, "intermediate_size": dim, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": True, "hidden_act": "silu", "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    codes = np.random.default_rng(1).standard_normal((dim, dim)).astype(ml_dtypes.float8_e4m3fn)
    tensors = {"w.weight": ("F8_E4M3", codes), "w.weight_scale": ("F32", np.float32([0.5]))}
    header, data = {}, b""
    for name, (dtype, x) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    c = octet.open_checkpoint(tmp_path)
    assert c.state is None and np.array_equal(c["model/w.weight"].view(np.uint8), codes.view(np.uint8))
    assert np.array_equal(c.weight("model/w.weight"), codes.astype(np.float32) * np.float32(0.5))


def test_a_run_that_was_trained_again(run, tmp_path):
    import shutil

    name = "model/model.embed_tokens.weight"
    shutil.copytree(run, tmp_path / "a")
    first = octet.open(tmp_path / "a").checkpoint(6)
    before = first[name]
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        first[name]
    shutil.copytree(run, tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "step-00000006")
    shutil.copytree(run / "checkpoints" / "step-00000003", tmp_path / "a" / "checkpoints" / "step-00000006")
    assert not np.array_equal(before, octet.open_checkpoint(tmp_path / "a" / "checkpoints" / "step-00000006")[name])


def test_relative_paths(run, monkeypatch):
    octet.open(run)  # the server starts in another folder
    monkeypatch.chdir(run.parent)
    assert octet.open("a").step == 6 and octet.open(b"a").metrics["loss"].steps.dtype == np.int64
    assert octet.open_checkpoint("a/checkpoints/step-00000003").state["step"] == 3


def test_what_is_missing(run, tmp_path):
    with pytest.raises(FileNotFoundError):
        octet.open_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        octet.open(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        octet.open_checkpoint(tmp_path / "none")
    c = octet.open(run).checkpoint(3)
    with pytest.raises(KeyError):
        c["model/none"]
    with pytest.raises(ValueError, match="not a tensor of the model"):
        c.weight("optimizer/none")
    with pytest.raises(ValueError, match="no checkpoint of step 4"):
        octet.open(run).checkpoint(4)


def test_damage(run, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    model = copy / "checkpoints" / "step-00000006" / "model.safetensors"
    raw = bytearray(model.read_bytes())
    raw[-1] ^= 1
    model.write_bytes(raw)
    with pytest.raises(octet.Error, match="model.safetensors"):
        octet.open(copy).checkpoint(6)
    model.write_bytes(raw[:-1])
    r = octet.open(copy)
    assert r.checkpoints == [3] and len(r.damaged) == 1
