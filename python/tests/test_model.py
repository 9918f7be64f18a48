# SPDX-License-Identifier: Apache-2.0
"""A whole model with and without replace_sdpa: the same logits, the same tokens.

Hugging Face's Llama from a config (nothing is downloaded) where transformers is installed, and the
Llama of llama.py everywhere; on the CPU, and on a GPU where there is one.
"""

import pytest

torch = pytest.importorskip("torch", minversion="2.5")

import attn.torch  # noqa: E402
import llama  # noqa: E402

# dtype, and |difference| of logits <= tolerance * (1 + |logit|)
DEVICES = {"cpu": (torch.float32, 1e-4), "cuda": (torch.float16, 2e-2)}
NEW_TOKENS = 24


class HuggingFace:
    """transformers' model with the interface of llama.Llama."""

    layers = llama.LAYERS

    def __init__(self):
        transformers = pytest.importorskip("transformers")
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=llama.VOCABULARY, hidden_size=llama.WIDTH, intermediate_size=llama.INNER,
            num_hidden_layers=llama.LAYERS, num_attention_heads=llama.HEADS,
            num_key_value_heads=llama.HEADS_KV, max_position_embeddings=256,
            initializer_range=llama.SPREAD, attn_implementation="sdpa"))

    def to(self, *arguments):
        self.model.to(*arguments).eval()
        return self

    def __call__(self, tokens, cache=None, visible=None):
        found = self.model(tokens, past_key_values=cache, attention_mask=visible, use_cache=True)
        return found.logits, found.past_key_values


@pytest.fixture(params=[llama.Llama, HuggingFace], ids=["own", "huggingface"])
def kind(request):
    return request.param


@pytest.fixture(params=list(DEVICES))
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no NVIDIA GPU")
    return request.param


@pytest.fixture
def case(kind, device):
    """(model, tokens, tolerance) on the device."""
    torch.manual_seed(0)
    dtype, tolerance = DEVICES[device]
    model = kind().to(device, dtype)
    tokens = torch.randint(0, llama.VOCABULARY, (2, 37)).to(device)
    with torch.inference_mode():
        yield model, tokens, tolerance


def greedy(model, tokens, visible=None):
    """The new tokens, and the margin of each over the second best."""
    chosen, leads, cache = [], [], None
    for _ in range(NEW_TOKENS):
        logits, cache = model(tokens, cache, visible)
        best = logits[:, -1].float().topk(2)
        tokens = best.indices[:, :1]
        chosen.append(tokens)
        leads.append(best.values[:, 0] - best.values[:, 1])
        if visible is not None:
            visible = torch.cat((visible, torch.ones_like(visible[:, :1])), 1)
    return torch.cat(chosen, 1), torch.stack(leads, 1)


def same_tokens(found, expected, leads, tolerance):
    """Equal up to the first tie; after it the contexts differ."""
    for ours, theirs, lead in zip(found.tolist(), expected.tolist(), leads.tolist()):
        apart = [n for n in range(NEW_TOKENS) if ours[n] != theirs[n]]
        assert not apart or lead[apart[0]] < tolerance, f"{ours}\n{theirs}\n{lead}"
        assert not apart or apart[0] > 0


def hidden(tokens):
    """Which tokens there are: the first of the batch begins with nine that do not count."""
    visible = torch.ones_like(tokens)
    visible[0, :9] = 0
    return visible


def test_logits(case):
    model, tokens, tolerance = case
    expected = model(tokens)[0]
    with attn.torch.replace_sdpa() as seen:
        found = model(tokens)[0]
    assert (seen.calls, seen.by_pytorch) == (model.layers, 0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_logits_behind_padding(case):
    model, tokens, tolerance = case
    visible = hidden(tokens)
    expected = model(tokens, visible=visible)[0]
    with attn.torch.replace_sdpa() as seen:
        found = model(tokens, visible=visible)[0]
    assert seen.calls == model.layers
    exist = visible.bool()  # rows of padding are undefined
    torch.testing.assert_close(found[exist], expected[exist], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_greedy_decoding(case, padded):
    model, tokens, tolerance = case
    visible = hidden(tokens) if padded else None
    expected, leads = greedy(model, tokens, visible)
    with attn.torch.replace_sdpa() as seen:
        found = greedy(model, tokens, visible)[0]
    assert seen.calls == model.layers * NEW_TOKENS
    same_tokens(found, expected, leads, tolerance)


def test_generate(device):
    """transformers' own loop, unmodified."""
    if device != "cpu":
        pytest.skip("bitwise equal tokens are required in float32 only")
    torch.manual_seed(1)
    model = HuggingFace().to(device, torch.float32).model
    tokens = torch.randint(0, llama.VOCABULARY, (2, 37))
    named = {"attention_mask": hidden(tokens), "max_new_tokens": NEW_TOKENS, "do_sample": False,
             "pad_token_id": 0}
    with torch.inference_mode():
        expected = model.generate(tokens, **named)
        with attn.torch.replace_sdpa() as seen:
            found = model.generate(tokens, **named)
    assert seen.calls == llama.LAYERS * NEW_TOKENS
    assert torch.equal(found, expected)


def test_the_comparison_can_fail(case):
    """A softmax that is a little too flat is seen in the logits and in the tokens."""
    model, tokens, tolerance = case
    ours = attn.torch.sdpa
    expected, (chosen, leads) = model(tokens)[0], greedy(model, tokens)
    original = torch.nn.functional.scaled_dot_product_attention

    def flat(q, k, v, *arguments, **named):
        named["scale"] = 0.5 * q.shape[-1] ** -0.5
        return ours(q, k, v, *arguments, **named)

    torch.nn.functional.scaled_dot_product_attention = flat
    try:
        found, (others, _) = model(tokens)[0], greedy(model, tokens)
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    if tolerance < 1e-3:
        with pytest.raises(AssertionError):
            same_tokens(others, chosen, leads, tolerance)
