# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers with attn_implementation="attn" and "eager": the same logits,
the same tokens; and which options the library was given instead of a dense mask."""

import collections

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.masking_utils")

import attn  # noqa: E402
import attn.transformers  # noqa: E402
from attn._masks import Dense  # noqa: E402
from attn.peers.machine import NotRun  # noqa: E402
from attn.peers.models import set_attention  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
BATCH, LENGTH, NEW_TOKENS, VOCABULARY = 3, 21, 14, 128
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "initializer_range": 0.1, "pad_token_id": 0,
        "eos_token_id": None, "bos_token_id": 1}
WINDOW = {"sliding_window": 8}
BY_LAYER = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
DECODERS = {
    "Llama": {}, "Mistral": WINDOW, "Gemma2": {**BY_LAYER, "query_pre_attn_scalar": 16},
    # All experts: a choice of them would turn rounding into another result.
    "GptOss": {**BY_LAYER, "num_local_experts": 2, "num_experts_per_tok": 2}}
VISION = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "image_size": 48, "patch_size": 8}


def ready(model):
    """Random sinks and position biases too, which begin as zeros."""
    for name, parameter in model.named_parameters():
        if "sinks" in name or "relative" in name:
            torch.nn.init.normal_(parameter)
    return model.eval()


def decoder(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TEXT, **DECODERS[name])
    return ready(getattr(transformers, f"{name}ForCausalLM")(config))


def tokens():
    return torch.randint(2, VOCABULARY, (BATCH, LENGTH),
                         generator=torch.Generator().manual_seed(1))


def visible(padding):
    exist = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if padding is not None:
        exist[0, :9] = exist[1, :3] = 0
    return exist.flip(-1) if padding == "right" else exist


class Spy:
    """The masks that the implementation was given."""

    def __init__(self, monkeypatch):
        self.masks, ours = [], attn.transformers.attention_forward

        def watched(module, query, key, value, attention_mask, *rest, **named):
            self.masks.append(attention_mask)
            return ours(module, query, key, value, attention_mask, *rest, **named)
        monkeypatch.setattr(attn.transformers, "attention_forward", watched)

    def forms(self):
        return {"none" if mask is None else "dense" if isinstance(mask, (torch.Tensor, Dense))
                and not hasattr(mask, "structure") else
                repr(getattr(mask, "structure", mask)).split(", ")[-1].rstrip(">")
                for mask in self.masks}


@pytest.fixture
def spy(monkeypatch):
    return Spy(monkeypatch)


def both(model, run):
    """run(model) with eager attention and with ours, which computes every call itself."""
    attn.transformers.register(fallback=False)
    with torch.no_grad():
        set_attention(model, "eager")
        expected = run(model)
        try:
            set_attention(model, "attn")
        except NotRun:
            pytest.skip(f"transformers {transformers.__version__}: this model has no attention "
                        "interface")
        seen = attn.transformers.register(fallback=False)
        found = run(model)
    assert seen.calls and not seen.by_pytorch
    return found, expected


def close(found, expected, dtype=torch.float32):
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


PADDINGS = [None, "left", "right"]
FORM = {None: {"none"}, "left": {"runs"}, "right": {"used_kv"}}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", list(DECODERS))
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_decoder_logits(name, padding, dtype, spy):
    model, exist = decoder(name).to(dtype), visible(padding)
    found, expected = both(model, lambda m: m(tokens(), attention_mask=exist).logits)
    close(found[exist.bool()], expected[exist.bool()], dtype)
    assert spy.forms() <= FORM[padding] | {"all keys"}  # those of a window alone


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", list(DECODERS))
def test_decoder_generates(name, padding, cache, spy):
    """Past the window of 8, so that sliding caches are full; nothing dense on the way."""
    named = {"attention_mask": visible(padding), "max_new_tokens": NEW_TOKENS, "do_sample": False}
    if cache == "static":
        named.update(cache_implementation="static", disable_compile=True)
    found, expected = both(decoder(name), lambda m: m.generate(tokens(), **named))
    assert torch.equal(found, expected)
    if cache == "dynamic":
        assert "dense" not in spy.forms() and "keys" not in spy.forms()


def test_right_padding_generates_with_a_gap(spy):
    """The padding ends up between the keys of the prompt and the new ones: a mask of keys."""
    named = {"attention_mask": visible("right"), "max_new_tokens": 5, "do_sample": False}
    found, expected = both(decoder("Llama"), lambda m: m.generate(tokens(), **named))
    assert torch.equal(found, expected)
    assert spy.forms() == {"used_kv", "keys"}


def test_chunked_prefill(spy):
    def run(model):
        first = model(tokens()[:, :10], use_cache=True)
        return model(tokens()[:, 10:], past_key_values=first.past_key_values).logits
    close(*both(decoder("Gemma2"), run))
    assert "dense" not in spy.forms()


def test_packed_by_positions(spy):
    """transformers finds two sequences in one row; that pattern is a dense mask so far."""
    places = torch.cat((torch.arange(8), torch.arange(13)))[None]
    close(*both(decoder("Llama"), lambda m: m(tokens()[:1], position_ids=places,
                                              use_cache=False).logits))
    assert spy.forms() == {"dense"}


def test_mask_of_the_user(spy):
    """Four dimensions, boolean or additive, are taken as they are."""
    model = decoder("Llama")
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.5
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    found, expected = both(model, lambda m: m(tokens(), attention_mask=added).logits)
    close(found, expected)
    with torch.no_grad():
        close(model(tokens(), attention_mask=mask).logits, expected)
    assert spy.forms() == {"dense"}


@pytest.mark.parametrize("padding", PADDINGS)
def test_bert(padding, spy):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.1)
    exist = visible(padding)
    found, expected = both(ready(transformers.BertModel(config)),
                           lambda m: m(tokens(), attention_mask=exist).last_hidden_state)
    close(found[exist.bool()], expected[exist.bool()])
    assert spy.forms() == FORM[padding]


@pytest.mark.parametrize("padding", PADDINGS)
def test_window_on_both_sides(padding, spy):
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=4, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0,
        initializer_range=0.2)
    exist = visible(padding)
    found, expected = both(transformers.ModernBertModel(config).eval(),
                           lambda m: m(tokens(), attention_mask=exist).last_hidden_state)
    close(found[exist.bool()], expected[exist.bool()])
    assert "dense" not in spy.forms()


@pytest.mark.parametrize("padding", PADDINGS)
def test_t5(padding):
    """Position biases, cross attention, both caches."""
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96,
                                   num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = ready(transformers.T5ForConditionalGeneration(config))
    named = {"input_ids": tokens(), "attention_mask": visible(padding)}
    close(*both(model, lambda m: m(**named, decoder_input_ids=tokens()[:, :7]).logits))
    found, expected = both(model, lambda m: m.generate(
        **named, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None))
    assert torch.equal(found, expected)


def test_whisper():
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
        decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=50, max_target_positions=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None, init_std=0.1)
    model = ready(transformers.WhisperForConditionalGeneration(config))
    sound = torch.randn(2, 8, 100)
    close(*both(model, lambda m: m(input_features=sound, decoder_input_ids=tokens()[:2]).logits))
    generate = transformers.GenerationMixin.generate  # Whisper's own cuts sound into pieces
    found, expected = both(model, lambda m: generate(
        m, input_features=sound, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None))
    assert torch.equal(found, expected)


# What each is here for; the classes that a version of transformers does not have are skipped.
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
         "vocab_size": VOCABULARY, "initializer_range": 0.1, "pad_token_id": 0,
         "intermediate_size": 96, "max_position_embeddings": 64}
LATENT = {**SMALL, "q_lora_rank": 16, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
          "qk_nope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 2,
          "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
          "index_n_heads": 2, "index_head_dim": 32, "index_topk": 4, "num_key_value_heads": 4,
          "first_k_dense_replace": 1, "mlp_layer_types": ["dense", "sparse"]}
OTHERS = {
    "BloomModel": {**SMALL, "n_layer": 2, "n_head": 4},  # adds the mask itself
    "VisualBertModel": {**SMALL, "visual_embedding_dim": 20},  # so does this, a mask of one row
    "AlignTextModel": SMALL,   # no is_causal, and no mask
    "Aimv2TextModel": SMALL,   # is_causal=False, and a causal mask
    "DeepseekV3Model": LATENT,
    "DeepseekV32Model": LATENT,  # of each query's keys an indexer's choice
    "DeepseekV4Model": {**SMALL, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 32,
                        "partial_rotary_factor": 0.25, "o_groups": 2, "o_lora_rank": 16,
                        "n_routed_experts": 2, "num_experts_per_tok": 2, "sliding_window": 8,
                        "moe_intermediate_size": 32, "mlp_layer_types": ["moe", "moe"],
                        "layer_types": ["heavily_compressed_attention",
                                        "compressed_sparse_attention"], "hc_mult": 2,
                        "index_n_heads": 2, "index_head_dim": 16, "index_topk": 2,
                        "num_nextn_predict_layers": 0}}  # appends keys, and their mask


@pytest.mark.parametrize("name", list(OTHERS))
def test_as_eager(name):
    """Models that take masks in another way than most, loaded as users load them."""
    kind = getattr(transformers, name, None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    attn.transformers.register(fallback=False)
    models = {}
    for way in ("eager", "attn"):
        torch.manual_seed(0)
        config = getattr(transformers, name.replace("Model", "Config"))(**OTHERS[name])
        models[way] = ready(kind._from_config(config, attn_implementation=way))
    models["attn"].load_state_dict(models["eager"].state_dict())
    for padding in (None, "left"):
        exist = visible(padding)
        with torch.no_grad():
            found, expected = (models[way](tokens(), attention_mask=exist).last_hidden_state
                               for way in ("attn", "eager"))
        close(found[exist.bool()], expected[exist.bool()])


def test_chosen_blocks_of_keys():
    """Each group of heads sees the blocks that an indexer chose for it: MiniMax M3."""
    module = torch.nn.Module()
    module.indexer = torch.nn.Module()
    module.indexer.block_size = 4
    q, (k, v) = torch.randn(2, 4, 3, 16), torch.randn(2, 2, 2, 10, 16)
    blocks = torch.tensor([[0, -1], [2, 0], [1, 2]]).expand(2, 2, 3, 2).clone()
    blocks[:, 1, :, 0] = 1
    seen = torch.zeros(2, 2, 3, 12, dtype=torch.bool)
    for batch, group, row, block in torch.cartesian_prod(*map(torch.arange, (2, 2, 3, 3))):
        start = 4 * int(block)
        seen[batch, group, row, start:start + 4] = bool((blocks[batch, group, row] == block).any())
    seen = seen[..., :10] & torch.ones(3, 10, dtype=torch.bool).tril(7)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), seen.repeat_interleave(2, 1))
    for mask in (None, torch.ones(3, 10, dtype=torch.bool).tril(7)):
        found = attn.transformers.attention_forward(module, q, k, v, mask, block_indices=blocks)[0]
        close(found, expected.transpose(1, 2))


def test_a_mask_that_a_model_computes_with():
    """It is the tensor that eager attention would have got."""
    from attn import _masks
    exist = visible("left").bool()
    mask = _masks._structure(_masks._Pattern(True, 5), BATCH, LENGTH, LENGTH, 0, exist)
    added = torch.where(mask.dense(LENGTH, LENGTH, None), 0.0, torch.finfo(torch.float32).min)
    scores = torch.randn(BATCH, 2, LENGTH, LENGTH)
    for one in (mask, _masks.Dense(added == 0, torch.float32)):
        assert torch.equal(scores + one, scores + added)
        assert torch.equal(one + scores, scores + added)
        assert torch.equal(one[:, :, :, :7], added[..., :7]) and torch.equal(one == 0, added == 0)
        assert torch.equal(torch.cat((one, one), -1), torch.cat((added, added), -1))
        assert one.to(torch.float16).dtype == torch.float16 and one.size() == added.shape
        assert type(one.to("cpu")) is type(one) and not hasattr(one, "other")


def test_a_mask_of_one_query_or_one_sequence_is_broadcast():
    from attn import _masks
    x, exist = torch.randn(3, 2, 12, 16), torch.ones(1, 12, dtype=torch.bool)
    exist[:, :5] = False
    for rows in (1, 12):
        mask = _masks._structure(_masks._Pattern(False), 1, rows, 12, 0, exist)
        found = attn.transformers.attention_forward(torch.nn.Module(), x, x, x, mask)[0]
        close(found, torch.nn.functional.scaled_dot_product_attention(
            x, x[:, :, 5:], x[:, :, 5:]).transpose(1, 2))


def test_queries_of_one_sequence_are_broadcast():
    """To all batches of keys: the projector of Granite Speech."""
    q, (k, v) = torch.randn(1, 2, 3, 16, requires_grad=True), torch.randn(2, 5, 2, 7, 16)
    found = attn.transformers.attention_forward(torch.nn.Module(), q, k, v, None)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q.expand(5, -1, -1, -1), k, v)
    close(found, expected.transpose(1, 2))
    close(*(torch.autograd.grad(out.square().sum(), q)[0] for out in (found, expected)))


def test_no_weights_are_announced():
    attn.transformers.register()
    x = torch.zeros(1, 2, 3, 8)
    with pytest.warns(UserWarning, match="output_attentions"):
        attn.transformers.attention_forward(torch.nn.Module(), x, x, x, None,
                                            output_attentions=True)


def test_continuous_batching():
    """transformers has it for the names that it knows: register("sdpa"). Its cache gives the keys,
    its mask separates the sequences."""
    class Cache:
        def update(self, key_states, value_states, layer_idx, kwargs):
            assert layer_idx == 3 and "read_index" in kwargs
            return (torch.cat((before, x), 2) for x in (key_states, value_states))

    module = torch.nn.Module()
    module.layer_idx = 3
    before, x = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 4, 16)
    mask = torch.rand(1, 1, 4, 9) < 0.6
    keys, step = torch.cat((before, x), 2), {"cache": Cache(), "read_index": []}
    mask[..., 0] |= ~mask.any(-1)
    close(attn.transformers.attention_forward(module, x, x, x, mask, **step)[0],
          torch.nn.functional.scaled_dot_product_attention(x, keys, keys, mask).transpose(1, 2))
    with pytest.raises(attn.Unsupported, match="continuous batching"):
        attn.transformers.attention_forward(module, x, x, x, None, is_causal=True, **step)


@pytest.mark.parametrize("name", ["SiglipVision", "ViT"])
def test_vision(name):
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(
        getattr(transformers, f"{name}Config")(**VISION)).eval()
    images = torch.randn(2, 3, 48, 48)
    close(*both(model, lambda m: m(images).last_hidden_state))


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
@pytest.mark.parametrize("padding", [None, "left"])
def test_compiled_as_one_graph(name, padding):
    exist = visible(padding)

    def run(model):
        compiled = torch.compile(model, backend="eager", fullgraph=True) \
            if model.config._attn_implementation == "attn" else model
        return compiled(tokens(), attention_mask=exist, use_cache=False).logits[exist.bool()]
    torch._dynamo.reset()
    model = decoder(name)
    attn.transformers.register(fallback=False)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = run(model)
        model.set_attn_implementation("attn")
        close(run(model), expected)


def test_compiled_decoding():
    """One graph serves every length of a static cache."""
    torch._dynamo.reset()
    model = decoder("Llama")
    attn.transformers.register(fallback=False)
    named = {"attention_mask": visible("left"), "max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model.generate(tokens(), **named)
        model.set_attn_implementation("attn")
        graphs = []

        def counted(graph, inputs):
            graphs.append(graph)
            return graph.forward
        model.forward = torch.compile(model.forward, backend=counted)
        found = model.generate(tokens(), **named, cache_implementation="static")
    assert torch.equal(found, expected)
    assert len(graphs) == 2  # prefill and decode


class Operators(TorchDispatchMode):
    """Of PyTorch, by name: on a GPU most are a kernel, and all cost time on the host."""

    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.seen[str(function)] += 1
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("name, padding, most", [
    ("Llama", None, 0), ("Llama", "right", 0), ("GptOss", None, 0), ("Llama", "left", 4)])
def test_layers_call_no_operator(name, padding, most, monkeypatch):
    """Nothing but the library's call in a layer; one table of left padding for all of them: a copy
    to the device, and views. The sinks of a model in bfloat16 are converted once."""
    ours, counted = attn.transformers.attention_forward, []

    def watched(*tensors, **named):
        with Operators() as operators:
            found = ours(*tensors, **named)
        counted.append(operators.seen)
        return found
    monkeypatch.setattr(attn.transformers, "attention_forward", watched)
    attn.transformers.register(fallback=False)
    model = decoder(name).to(torch.bfloat16)
    model.set_attn_implementation("attn")
    with torch.no_grad():
        model(tokens())
        counted.clear()
        model(tokens(), attention_mask=visible(padding))
    first, second = counted
    assert sum(first.values()) <= most and not second, first


def test_a_sink_that_changes():
    x, sink = torch.randn(1, 2, 3, 8), torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    module = torch.nn.Module()
    with torch.no_grad():
        def out():
            return attn.transformers.attention_forward(module, x, x, x, None, s_aux=sink)[0]
        before = out()
        assert torch.equal(out(), before)
        sink += 3.0
        small = out()
        sink.data = torch.full((2,), 60.0, dtype=torch.bfloat16)
        assert out().abs().max() < 1e-5 < small.abs().max() < before.abs().max()


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("orders", [("bhsd", "bhsd", "bhsd"), ("bhsd", "bhsd", "bshd"),
                                    ("bshd", "bshd", "bhsd"), ("bshd", "room", "room")])
def test_left_padding_in_any_order(orders, rows):
    """Keys and values whose sequences lie differently in memory, also in a cache with room."""
    def tensor(order, heads, length):
        if order == "room":
            return torch.randn(3, heads, length + 5, 16)[:, :, :length]
        made = torch.randn(3, *((heads, length) if order == "bhsd" else (length, heads)), 16)
        return made if order == "bhsd" else made.transpose(1, 2)
    q, k, v = (tensor(order, heads, length) for order, heads, length in
               zip(orders, (4, 2, 2), (rows, 12, 12)))
    exist = torch.ones(3, 12, dtype=torch.bool)
    exist[0, :4] = exist[2, :7] = False
    from attn import _masks
    mask = _masks._structure(_masks._Pattern(True), 3, rows, 12, 12 - rows, exist)
    assert mask.runs is not None
    found = attn.transformers.attention_forward(torch.nn.Module(), q, k, v, mask)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1),
        mask.dense(rows, 12, q.device)).transpose(1, 2)
    assert found.is_contiguous()
    seen = exist[:, -rows:]
    close(found[seen], expected[seen])


def gradients(model, padding):
    exist = visible(padding)
    logits = model(tokens(), attention_mask=exist).logits[exist.bool()]
    loss = torch.nn.functional.cross_entropy(logits, tokens()[exist.bool()])
    return dict(zip((name for name, _ in model.named_parameters()),
                    torch.autograd.grad(loss, list(model.parameters()))))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GptOss"])
def test_training(name, padding):
    """Every parameter's gradient: soft caps, windows, groups, and sinks, which are parameters."""
    model = decoder(name)
    seen = attn.transformers.register(fallback=False)
    set_attention(model, "eager")
    expected = gradients(model, padding)
    set_attention(model, "attn")
    found = gradients(model, padding)
    assert (seen.calls, seen.by_pytorch) == (2, 0)
    for parameter, gradient in found.items():
        scale = expected[parameter].abs().max()
        assert (gradient - expected[parameter]).abs().max() <= 1e-4 * scale, parameter


def test_training_of_a_compiled_model():
    model = decoder("Gemma2")
    attn.transformers.register(fallback=False)
    set_attention(model, "attn")
    expected = gradients(model, "left")
    found = gradients(torch.compile(model, backend="aot_eager"), "left")
    for one, other in zip(found.values(), expected.values()):
        close(one, other)


def test_dropout_goes_to_pytorch():
    model = decoder("GptOss").train()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    seen = attn.transformers.register()
    set_attention(model, "attn")
    with pytest.warns(UserWarning, match="there is no dropout"):
        assert model(tokens(), attention_mask=visible("left")).logits.requires_grad
    assert (seen.calls, seen.by_pytorch, sum(seen.reasons.values())) == (2, 2, 2)
    attn.transformers.register(fallback=False)
    with pytest.raises(attn.Unsupported, match="there is no dropout"):
        model(tokens())


def test_other_dtypes_go_to_pytorch():
    model = decoder("Llama").double()
    seen = attn.transformers.register()
    model.set_attn_implementation("attn")
    with torch.no_grad(), pytest.warns(UserWarning, match="float64"):
        model(tokens(), attention_mask=visible("right"))
    assert seen.by_pytorch == 2 and "float64" in next(iter(seen.reasons))


def test_a_mask_of_another_length_is_refused():
    """It would put the diagonal in the wrong place."""
    from attn._masks import Structure
    x = torch.zeros(1, 2, 4, 8)
    mask = Structure((1, 1, 4, 6), "bottom-right", (-1, -1), 2, 6)
    with pytest.raises(attn.InvalidArgument, match="4 queries and 6 keys, the layer has 4 and 4"):
        attn.transformers.attention_forward(torch.nn.Module(), x, x, x, mask)


def test_a_wrong_mask_is_seen(monkeypatch):
    """Padding that is off by one key shows in the logits."""
    from attn import _masks
    place = _masks._place_padding

    def wrong(mask, *rest):
        place(mask, *rest)
        mask.runs = (mask.runs[0] - 1, mask.runs[1] + 1)
    monkeypatch.setattr(_masks, "_place_padding", wrong)
    exist = torch.ones(BATCH, LENGTH, dtype=torch.long)
    exist[:, :5] = 0
    found, expected = both(decoder("Llama"), lambda m: m(tokens(), attention_mask=exist).logits)
    with pytest.raises(AssertionError):
        close(found[exist.bool()], expected[exist.bool()])
