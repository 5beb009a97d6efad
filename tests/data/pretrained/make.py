"""Writes folders of tiny models with random weights by transformers, and its results for them.

  python make.py [FOLDER]     # beside this script if not given; needs torch, transformers and tokenizers

Each folder has config.json, model.safetensors (in one folder in parts) and golden.safetensors: for prompts a and b of
different lengths, ids, logits or hidden states computed in double, and 20 tokens of greedy decoding.
rope.json holds the frequencies of each kind of scaling.
"""
import copy
import json
import math
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
NEW_TOKENS = 20
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def draw(model):
    """Sets weights so that products keep their size; norms near 1 (or 0 if 1 is added to them), biases near 0."""
    one_is_added = model.config.model_type.startswith(("gemma", "vaultgemma", "nemotron", "qwen3_next"))
    for name, p in model.named_parameters():
        if p.dim() == 1 and "norm" in name.lower() + (".ln_" in name) * "norm" and name.endswith("weight"):
            torch.nn.init.normal_(p, 0 if one_is_added and "linear_attn" not in name else 1, 0.2)
        elif p.dim() <= 1:
            torch.nn.init.normal_(p, 0, 0.2)
        elif "emb" in name or "shared" in name or "wte" in name or "wpe" in name or "token" in name:
            torch.nn.init.normal_(p, 0, 0.6)
        else:
            is_conv1d = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
            fan_in = p.shape[0] if is_conv1d else p[0].numel()
            if p.dim() == 3 and model.config.model_type in ("gpt_oss", "granitemoe"):
                fan_in = p.shape[1] if model.config.model_type == "gpt_oss" else p.shape[2]
            # Some results of gpt_oss' gates must exceed the limit.
            scale = 8 if name.endswith("experts.gate_up_proj") and model.config.model_type == "gpt_oss" else 1
            torch.nn.init.normal_(p, 0, scale / math.sqrt(fan_in))


def save(name, model, golden, edit=None, *, keep=(), **options):
    """`edit` changes the config to the form of older files; `keep` names other files of transformers to keep."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    model.float().save_pretrained(folder, **options)
    if "generation_config.json" not in keep:
        (folder / "generation_config.json").unlink(missing_ok=True)
    if edit:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        edit(config)
        path.write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.float().contiguous() if v.is_floating_point() else v for k, v in golden.items()}, folder / "golden.safetensors")


def ids_of(length, vocab, seed):
    return torch.randint(3, vocab, (1, length), generator=torch.Generator().manual_seed(seed))


class CloseCall(Exception):
    """Two tokens are nearly equally likely: other weights are needed."""


def with_some_seed(f):
    """Calls f(seed, ..) with other seeds until no two tokens are close."""
    def run(*args, seed, **options):
        while True:
            try:
                return f(*args, seed=seed, **options)
            except CloseCall:
                seed += 100
    return run


@torch.no_grad()
def greedy(model, ids, **inputs):
    out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0,
                         output_logits=True, return_dict_in_generate=True, **inputs)
    best = torch.stack(out.logits).topk(2).values
    if (best[..., 0] - best[..., 1]).min() < 3e-3:
        raise CloseCall
    return out.sequences[0, -NEW_TOKENS:]


@with_some_seed
@torch.no_grad()
def decoder(name, model_class, config, *, seed, lengths=(7, 12), edit=None, change=None, **options):
    torch.manual_seed(seed)
    model = model_class(config).eval()
    draw(model)
    if change:
        change(model)
    model.double()
    golden = {}
    for key, length in zip("ab", lengths):
        ids = ids_of(length, config.vocab_size, seed + length)
        golden[f"ids_{key}"] = ids[0]
        # Dynamic frequencies depend on earlier calls.
        golden[f"logits_{key}"] = copy.deepcopy(model)(ids).logits[0]
        golden[f"greedy_{key}"] = greedy(copy.deepcopy(model), ids)
    print(f"{name}: logits up to {golden['logits_b'].abs().max():.3g}")
    save(name, model, golden, edit, **options)


@torch.no_grad()
def encoder(name, model_class, config, seed, lengths=(7, 12), body=None, edit=None):
    """`body` names the part of a model with a head that computes hidden states."""
    torch.manual_seed(seed)
    model = model_class(config).eval()
    draw(model)
    model.double()
    golden = {}
    for key, length in zip("ab", lengths):
        ids = ids_of(length, config.vocab_size, seed + length)
        out = (getattr(model, body) if body else model)(ids)
        golden[f"ids_{key}"] = ids[0]
        golden[f"hidden_{key}"] = out.last_hidden_state[0]
        if out.get("pooler_output") is not None:
            golden[f"pooled_{key}"] = out.pooler_output[0]
    print(f"{name}: hidden states up to {golden['hidden_b'].abs().max():.3g}")
    save(name, model, golden, edit)


SIZES = dict(vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def old_mistral(config):
    del config["rope_parameters"]
    config.update(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0}, torch_dtype="float32")
    config.pop("dtype", None)


def decoders_of_all_kinds():
    decoder("llama", hf.LlamaForCausalLM, hf.LlamaConfig(**SIZES, rope_parameters=LLAMA3), seed=1, max_shard_size="12KB")
    decoder("llama_yarn", hf.LlamaForCausalLM,
            hf.LlamaConfig(**SIZES, rope_parameters=YARN, attention_bias=True, mlp_bias=True, head_dim=8,
                           tie_word_embeddings=True), seed=2)
    decoder("llama_dynamic", hf.LlamaForCausalLM,
            hf.LlamaConfig(**(SIZES | dict(max_position_embeddings=10)),
                           rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}), seed=3)
    decoder("mistral", hf.MistralForCausalLM,
            hf.MistralConfig(**SIZES, head_dim=8, sliding_window=5,
                             rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}), seed=4,
            edit=old_mistral)
    decoder("qwen2", hf.Qwen2ForCausalLM,
            hf.Qwen2Config(**(SIZES | dict(vocab_size=264)), use_sliding_window=True, sliding_window=4,
                           max_window_layers=1, eos_token_id=261), seed=5)
    decoder("qwen3", hf.Qwen3ForCausalLM,
            hf.Qwen3Config(**(SIZES | dict(vocab_size=264)), head_dim=8, tie_word_embeddings=True, eos_token_id=261), seed=6)
    decoder("gemma", hf.GemmaForCausalLM, hf.GemmaConfig(**SIZES, head_dim=8), seed=7)
    decoder("gemma2", hf.Gemma2ForCausalLM,
            hf.Gemma2Config(**SIZES, head_dim=8, sliding_window=4, query_pre_attn_scalar=10,
                            attn_logit_softcapping=3.0, final_logit_softcapping=5.0, attn_implementation="eager"), seed=8)
    decoder("gpt2", hf.GPT2LMHeadModel,
            hf.GPT2Config(vocab_size=96, n_positions=40, n_embd=16, n_layer=2, n_head=4), seed=9)


def decoders_of_2024_and_later():
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    half = SIZES | dict(hidden_size=64)
    windows = dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    decoder("gemma3_text", hf.Gemma3ForCausalLM,
            hf.Gemma3TextConfig(**SIZES, **windows, head_dim=8, query_pre_attn_scalar=10, rope_parameters={
                "sliding_attention": plain, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}),
            seed=21)
    decoder("phi3", hf.Phi3ForCausalLM, hf.Phi3Config(**SIZES, sliding_window=5, pad_token_id=0), seed=22)
    factors = {"short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0]}
    decoder("phi3_longrope", hf.Phi3ForCausalLM,
            hf.Phi3Config(**SIZES, pad_token_id=0, original_max_position_embeddings=28,
                          rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors}), seed=52, lengths=(7, 30))
    decoder("smollm3", hf.SmolLM3ForCausalLM,
            hf.SmolLM3Config(**(SIZES | dict(num_hidden_layers=5)), pad_token_id=0), seed=23)
    decoder("olmo2", hf.Olmo2ForCausalLM, hf.Olmo2Config(**SIZES), seed=24)
    decoder("olmo3", hf.Olmo3ForCausalLM,
            hf.Olmo3Config(**SIZES, **windows, rope_parameters={"sliding_attention": plain, "full_attention": YARN}), seed=25)
    decoder("granite", hf.GraniteForCausalLM,
            hf.GraniteConfig(**SIZES, embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.3,
                             logits_scaling=2.0, tie_word_embeddings=True), seed=26)
    decoder("seed_oss", hf.SeedOssForCausalLM, hf.SeedOssConfig(**SIZES, head_dim=8), seed=27)
    decoder("arcee", hf.ArceeForCausalLM, hf.ArceeConfig(**SIZES), seed=28)
    decoder("exaone4", hf.Exaone4ForCausalLM, hf.Exaone4Config(**SIZES, **windows), seed=29)
    decoder("cohere2", hf.Cohere2ForCausalLM, hf.Cohere2Config(**SIZES, **windows, logit_scale=0.5, pad_token_id=0), seed=30)
    decoder("cohere", hf.CohereForCausalLM, hf.CohereConfig(**SIZES, logit_scale=0.5, pad_token_id=0), seed=44)
    decoder("glm4", hf.Glm4ForCausalLM, hf.Glm4Config(**SIZES, head_dim=8, pad_token_id=0), seed=31)
    decoder("glm", hf.GlmForCausalLM, hf.GlmConfig(**SIZES, head_dim=8, pad_token_id=0), seed=43)
    decoder("stablelm", hf.StableLmForCausalLM,
            hf.StableLmConfig(**half, use_qkv_bias=True, use_parallel_residual=True), seed=32)
    decoder("starcoder2", hf.Starcoder2ForCausalLM, hf.Starcoder2Config(**SIZES, sliding_window=5), seed=33)
    decoder("nemotron", hf.NemotronForCausalLM, hf.NemotronConfig(**half), seed=34)
    decoder("gpt_neox", hf.GPTNeoXForCausalLM,
            hf.GPTNeoXConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                             max_position_embeddings=64, rotary_pct=0.5), seed=35)
    decoder("gptj", hf.GPTJForCausalLM,
            hf.GPTJConfig(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4), seed=36)
    decoder("phi", hf.PhiForCausalLM, hf.PhiConfig(**half, partial_rotary_factor=0.5), seed=37)
    decoder("opt", hf.OPTForCausalLM,
            hf.OPTConfig(vocab_size=96, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4,
                         max_position_embeddings=64, word_embed_proj_dim=16), seed=38)
    experts = dict(num_experts=4, num_experts_per_tok=2)
    for name, model, config in (
            ("mixtral", hf.MixtralForCausalLM,
             hf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=5)),
            ("qwen2_moe", hf.Qwen2MoeForCausalLM,
             hf.Qwen2MoeConfig(**SIZES, **experts, moe_intermediate_size=12, shared_expert_intermediate_size=20,
                               mlp_only_layers=[])),
            ("qwen3_moe", hf.Qwen3MoeForCausalLM,
             hf.Qwen3MoeConfig(**SIZES, **experts, head_dim=8, moe_intermediate_size=12, norm_topk_prob=True,
                               mlp_only_layers=[])),
            ("olmoe", hf.OlmoeForCausalLM, hf.OlmoeConfig(**SIZES, **experts))):
        config._experts_implementation = "eager"  # the others compute in float
        decoder(name, model, config, seed=45)
    decoder("ernie4_5", hf.Ernie4_5ForCausalLM, hf.Ernie4_5Config(**SIZES, head_dim=8), seed=42)
    decoder("olmo", hf.OlmoForCausalLM, hf.OlmoConfig(**SIZES, clip_qkv=1.0), seed=102)
    decoder("jais2", hf.Jais2ForCausalLM, hf.Jais2Config(**SIZES), seed=103)
    decoder("cwm", hf.CwmForCausalLM,
            hf.CwmConfig(**SIZES, sliding_window=4, head_dim=8, bos_token_id=1, eos_token_id=2, rope_parameters=LLAMA3), seed=104)
    decoder("vaultgemma", hf.VaultGemmaForCausalLM,
            hf.VaultGemmaConfig(**SIZES, head_dim=8, sliding_window=4, query_pre_attn_scalar=10, attn_logit_softcapping=3.0,
                                final_logit_softcapping=5.0, attn_implementation="eager"), seed=105)
    decoder("helium", hf.HeliumForCausalLM, hf.HeliumConfig(**SIZES, head_dim=4), seed=101)


def published_mpt(config):
    keys = ("alibi", "alibi_bias_max", "attn_type", "attn_uses_sequence_id", "prefix_lm", "qk_ln")
    clip = config["attn_config"]["clip_qkv"]
    config["attn_config"] = {key: config["attn_config"][key] for key in keys} | ({"clip_qkv": clip} if clip else {})


def decoders_of_2022():
    decoder("bloom", hf.BloomForCausalLM,
            hf.BloomConfig(vocab_size=96, hidden_size=24, n_layer=2, n_head=6, pad_token_id=0), seed=71)
    decoder("mpt", hf.MptForCausalLM,
            hf.MptConfig(vocab_size=96, d_model=24, n_layers=2, n_heads=6, max_seq_len=64), seed=72, edit=published_mpt)
    falcon = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=48,
                  max_position_embeddings=64)
    decoder("falcon", hf.FalconForCausalLM,
            hf.FalconConfig(**falcon, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False), seed=73)
    decoder("falcon_multi_query", hf.FalconForCausalLM, hf.FalconConfig(**falcon), seed=74)
    decoder("falcon_sequential", hf.FalconForCausalLM,
            hf.FalconConfig(**falcon, multi_query=False, parallel_attn=False, bias=True), seed=75)


GPT_OSS = dict(vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=8, max_position_embeddings=64, sliding_window=4, num_local_experts=4,
               num_experts_per_tok=2, swiglu_limit=7.0, pad_token_id=0,
               rope_parameters=YARN | {"rope_theta": 100.0, "original_max_position_embeddings": 64, "truncate": False})


def gpt_oss_config():
    config = hf.GptOssConfig(**GPT_OSS)
    config._experts_implementation = "eager"  # the others compute in float
    return config


def fused_experts():
    granite = hf.GraniteMoeConfig(**SIZES, embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.3,
                                  logits_scaling=2.0, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0)
    granite._experts_implementation = "eager"
    decoder("granitemoe", hf.GraniteMoeForCausalLM, granite, seed=62)
    decoder("gpt_oss", hf.GptOssForCausalLM, gpt_oss_config(), seed=61)


def ministral3():
    rope = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
    decoder("ministral3", hf.Ministral3ForCausalLM,
            hf.Ministral3Config(**SIZES, head_dim=8, sliding_window=9, pad_token_id=0, rope_parameters=rope), seed=83,
            lengths=(7, 19))


def clipped():
    """Models with limits that about a third of the queries, keys and values exceed."""
    olmoe = hf.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, clip_qkv=1.0)
    olmoe._experts_implementation = "eager"
    decoder("olmoe_clipped", hf.OlmoeForCausalLM, olmoe, seed=84)
    decoder("mpt_clipped", hf.MptForCausalLM,
            hf.MptConfig(vocab_size=96, d_model=24, n_layers=2, n_heads=6, max_seq_len=64,
                         attn_config={"clip_qkv": 1.0}), seed=85, edit=published_mpt)


def deepseek():
    """Layer 0 is dense; two groups of two experts; yarn scales the rotary part, and with it the scores."""
    sizes = SIZES | dict(num_key_value_heads=4, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, kv_lora_rank=12,
                         n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=12,
                         n_shared_experts=2, routed_scaling_factor=1.5, first_k_dense_replace=1, pad_token_id=0,
                         rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 0.7})
    v2 = hf.DeepseekV2Config(**sizes, q_lora_rank=None, topk_method="group_limited_greedy")
    v3 = hf.DeepseekV3Config(**sizes, q_lora_rank=8, norm_topk_prob=True)

    def correct(model):
        torch.nn.init.normal_(model.model.layers[1].mlp.gate.e_score_correction_bias, 0, 0.2)

    for config in (v2, v3):
        config._experts_implementation = "eager"
    decoder("deepseek_v2", hf.DeepseekV2ForCausalLM, v2, seed=81)
    decoder("deepseek_v3", hf.DeepseekV3ForCausalLM, v3, seed=82, change=correct)


def old_lfm2(config):
    """Keys of the files of 2025."""
    kinds = config.pop("layer_types")
    config.update(full_attn_idxs=[n for n, kind in enumerate(kinds) if kind != "conv"], block_ff_dim=config.pop("intermediate_size"),
                  rope_theta=config.pop("rope_parameters")["rope_theta"], tie_embedding=config.pop("tie_word_embeddings"),
                  block_dim=16, conv_dim=16, conv_dim_out=16, num_heads=4, block_norm_eps=config["norm_eps"],
                  block_use_swiglu=True, use_pos_enc=True, block_mlp_init_scale=1.0, block_use_xavier_init=True)


def lfm2():
    sizes = SIZES | dict(num_hidden_layers=4, pad_token_id=0, block_multiple_of=8, block_ffn_dim_multiplier=1.2)
    decoder("lfm2", hf.Lfm2ForCausalLM,
            hf.Lfm2Config(**sizes, conv_bias=True, conv_L_cache=4,
                          layer_types=["conv", "full_attention", "conv", "conv"]), seed=91)
    decoder("lfm2_old", hf.Lfm2ForCausalLM, hf.Lfm2Config(**sizes, full_attn_idxs=[0, 2]), seed=92, edit=old_lfm2)


def qwen3_next():
    """Two value heads for each key head; the last layer has attention."""
    config = hf.Qwen3NextConfig(**(SIZES | dict(num_hidden_layers=3)), head_dim=8, linear_conv_kernel_dim=3,
                                linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                                linear_value_head_dim=5, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                                shared_expert_intermediate_size=20, attention_bias=True,
                                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                                layer_types=["linear_attention", "linear_attention", "full_attention"])
    config._experts_implementation = "eager"
    decoder("qwen3_next", hf.Qwen3NextForCausalLM, config, seed=93)


def gpt_oss_mxfp4():
    """gpt_oss with the experts' weights in blocks of 32 4-bit numbers, as in the published files."""
    values = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    stored = {}

    def quantize(model):
        random = torch.Generator().manual_seed(63)
        for n, layer in enumerate(model.model.layers):
            for part in ("gate_up_proj", "down_proj"):
                weight = getattr(layer.mlp.experts, part)
                experts, columns, rows = weight.shape
                blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=random)
                scales = torch.randint(*((125, 129) if part == "gate_up_proj" else (120, 124)), (experts, rows, columns // 32), dtype=torch.uint8, generator=random)
                numbers = torch.stack((values[(blocks & 15).long()], values[(blocks >> 4).long()]), -1).flatten(3)
                numbers = (numbers * 2.0 ** (scales.double() - 127)[..., None]).flatten(2)
                weight.data = numbers.transpose(1, 2).to(weight.dtype).contiguous()
                name = f"model.layers.{n}.mlp.experts.{part}"
                stored.update({name + "_blocks": blocks, name + "_scales": scales})

    def edit(config):
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}

    decoder("gpt_oss_mxfp4", hf.GptOssForCausalLM, gpt_oss_config(), seed=64, change=quantize, edit=edit)
    path = FOLDER / "gpt_oss_mxfp4" / "model.safetensors"
    tensors = {k: v for k, v in load_file(path).items() if not k.endswith(("gate_up_proj", "down_proj"))}
    save_file(tensors | stored, path, {"format": "pt"})


def encoders():
    sizes = dict(vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=20)
    encoder("bert", hf.BertModel, hf.BertConfig(**sizes), 11)
    encoder("roberta", hf.RobertaModel, hf.RobertaConfig(**sizes, type_vocab_size=1), 12)
    encoder("xlm_roberta", hf.XLMRobertaForMaskedLM, hf.XLMRobertaConfig(**sizes), 19, body="roberta")
    encoder("distilbert", hf.DistilBertModel,
            hf.DistilBertConfig(vocab_size=96, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=20),
            13)
    encoder("camembert", hf.CamembertModel, hf.CamembertConfig(**sizes, type_vocab_size=1), 60)


def old_modernbert(config):
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    config.update(global_attn_every_n_layers=3, global_rope_theta=5000.0, local_rope_theta=100.0, layer_norm_eps=1e-5,
                  position_embedding_type="absolute")


def old_nomic_bert(config):
    """A nomic_bert with the keys that the model's own code reads."""
    for new, old in (("hidden_size", "n_embd"), ("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"),
                     ("intermediate_size", "n_inner"), ("max_position_embeddings", "n_positions"),
                     ("layer_norm_eps", "layer_norm_epsilon"), ("hidden_dropout_prob", "resid_pdrop")):
        config[old] = config.pop(new)
    for key in ("rope_parameters", "hidden_act", "head_dim", "attention_probs_dropout_prob"):
        del config[key]
    config.update(activation_function="swiglu", causal=False, rotary_emb_base=100.0, rotary_emb_fraction=1.0,
                  rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None, prenorm=False,
                  parallel_block=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, use_rms_norm=False,
                  use_flash_attn=True, fused_bias_fc=True, fused_dropout_add_ln=True, max_trained_positions=2048)


def encoders_of_2020_and_later():
    sizes = dict(vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=20)
    tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    encoder("mpnet", hf.MPNetModel, hf.MPNetConfig(**(sizes | dict(max_position_embeddings=40))), 61, lengths=(7, 30))
    encoder("electra", hf.ElectraModel, hf.ElectraConfig(**sizes, embedding_size=8), 62)
    encoder("albert", hf.AlbertModel,
            hf.AlbertConfig(**(sizes | dict(num_hidden_layers=4)), embedding_size=8, num_hidden_groups=2), 63)
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    modernbert = sizes | tokens | dict(num_hidden_layers=4, local_attention=6, cls_token_id=1, sep_token_id=2)
    encoder("modernbert", hf.ModernBertModel, hf.ModernBertConfig(**modernbert), 64)
    bases = {"full_attention": plain | {"rope_theta": 5000.0}, "sliding_attention": plain | {"rope_theta": 100.0}}
    encoder("modernbert_old", hf.ModernBertForMaskedLM,
            hf.ModernBertConfig(**modernbert, rope_parameters=bases, norm_bias=True, attention_bias=True, mlp_bias=True), 65,
            body="model", edit=old_modernbert)
    encoder("nomic_bert", hf.NomicBertModel, hf.NomicBertConfig(**sizes), 66)
    encoder("nomic_bert_old", hf.NomicBertModel,
            hf.NomicBertConfig(**sizes, rope_parameters=plain | {"rope_theta": 100.0}), 67, edit=old_nomic_bert)
    encoder("eurobert", hf.EuroBertModel,
            hf.EuroBertConfig(**sizes, **tokens, num_key_value_heads=2, mask_token_id=3), 68)
    windows = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    encoder("embedding_gemma", hf.Gemma3TextModel,
            hf.Gemma3TextConfig(**sizes, **windows, head_dim=8, num_key_value_heads=2, query_pre_attn_scalar=10,
                                use_bidirectional_attention=True, rope_parameters={
                                    "sliding_attention": plain, "full_attention": plain | {"rope_theta": 1e6}}), 69)


@torch.no_grad()
def vit():
    torch.manual_seed(14)
    config = hf.ViTConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                          image_size=[8, 12], patch_size=4, num_channels=3, num_labels=5)
    model = hf.ViTForImageClassification(config).eval()
    draw(model)
    model.double()
    images = torch.randn(2, 3, 8, 12, dtype=torch.double)
    out = model(images, output_hidden_states=True)
    hidden = model.vit(images).last_hidden_state
    save("vit", model, {"images": images.float(), "hidden": hidden, "logits": out.logits})


@torch.no_grad()
def dinov2():
    """Images of the trained size, and of another size, for which positions are interpolated."""
    for name, kind, registers in (("dinov2", "Dinov2", {}), ("dinov2_with_registers", "Dinov2WithRegisters", {"num_register_tokens": 2})):
        torch.manual_seed(21)
        config = getattr(hf, kind + "Config")(hidden_size=16, mlp_ratio=2, num_hidden_layers=2, num_attention_heads=4,
                                              image_size=12, patch_size=4, **registers)
        model = getattr(hf, kind + "Model")(config).eval()
        draw(model)
        model.double()
        golden = {}
        for key, height, width in (("a", 12, 12), ("b", 8, 20), ("c", 16, 12)):
            golden[f"images_{key}"] = torch.randn(1, 3, height, width).float()
            golden[f"hidden_{key}"] = model(golden[f"images_{key}"].double()).last_hidden_state
        print(f"{name}: hidden states up to {golden['hidden_b'].abs().max():.3g}")
        save(name, model, golden)


@torch.no_grad()
def clip():
    """In the second folder a text ends at its largest id, as in the first published models."""
    for name, end, seed in (("clip", 95, 22), ("clip_old", 2, 23)):
        torch.manual_seed(seed)
        both = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
        config = hf.CLIPConfig(projection_dim=12,
                               text_config=both | dict(vocab_size=96, max_position_embeddings=20, eos_token_id=end,
                                                       bos_token_id=94, pad_token_id=1),
                               vision_config=both | dict(hidden_size=20, image_size=12, patch_size=4))
        model = hf.CLIPModel(config).eval()
        draw(model)
        model.logit_scale.fill_(1.5)
        model.double()
        images = torch.randn(2, 3, 12, 12).float()
        ids = torch.cat([ids_of(7, 94, seed + n) for n in range(3)])
        ids[:, 0] = 94
        for row, at in enumerate((4, 6, 2)):  # padded after the end, as the tokenizer does
            ids[row, at:] = 95
        out = model(input_ids=ids, pixel_values=images.double())
        golden = {"images": images, "ids": ids, "image_embeds": out.image_embeds, "text_embeds": out.text_embeds,
                  "logits": out.logits_per_image}
        print(f"{name}: {out.logits_per_image.tolist()}")
        save(name, model, golden)


@torch.no_grad()
def siglip(seed):
    torch.manual_seed(seed)
    both = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
    config = hf.SiglipConfig(text_config=both | dict(vocab_size=96, max_position_embeddings=10, hidden_size=20, projection_size=16),
                             vision_config=both | dict(image_size=12, patch_size=4))
    model = hf.SiglipModel(config).eval()
    draw(model)
    model.logit_scale.fill_(1.5)
    model.logit_bias.fill_(-2.5)
    model.double()
    images = torch.randn(2, 3, 12, 12).float()
    ids = torch.cat([ids_of(10, 96, seed + n) for n in range(3)])
    for row, at in enumerate((4, 9, 2)):  # padded to the longest text
        ids[row, at:] = 1
    out = model(input_ids=ids, pixel_values=images.double())
    print(f"siglip: {out.logits_per_image.tolist()}")
    save("siglip", model, {"images": images, "ids": ids, "image_embeds": out.image_embeds, "text_embeds": out.text_embeds,
                           "logits": out.logits_per_image})


@with_some_seed
@torch.no_grad()
def seq2seq(name, make, *, seed, edit=None, forced=None):
    """`forced` is the token after the first one of each target, which generation_config.json names."""
    torch.manual_seed(seed)
    model = make().eval()
    draw(model)
    for module in model.modules():
        if hasattr(module, "create_weight"):  # sinusoidal positions
            module.weight.copy_(module.create_weight())
    model.generation_config.forced_bos_token_id = forced
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(0, 0.2)
    model.double()
    golden = {}
    for key, length in zip("ab", (7, 12)):
        ids, target = ids_of(length, 96, seed + length), ids_of(length - 3, 96, seed + 1 + length)
        golden[f"ids_{key}"], golden[f"target_{key}"] = ids[0], target[0]
        golden[f"logits_{key}"] = model(ids, decoder_input_ids=target).logits[0]
        golden[f"greedy_{key}"] = greedy(model, ids, num_beams=1)
    print(f"{name}: logits up to {golden['logits_b'].abs().max():.3g}")
    save(name, model, golden, edit, keep=("generation_config.json",) if forced else ())


def bart():
    config = hf.BartConfig(vocab_size=96, d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
                           decoder_ffn_dim=24, encoder_attention_heads=4, decoder_attention_heads=4,
                           max_position_embeddings=40, scale_embedding=True, forced_eos_token_id=None)
    seq2seq("bart", lambda: hf.BartForConditionalGeneration(config), seed=15)


def t5():
    """Distances beyond the last bucket; the second folder has the form of version 1.1, with its own head."""
    sizes = dict(vocab_size=96, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
                 relative_attention_max_distance=6, decoder_start_token_id=0)
    seq2seq("t5", lambda: hf.T5ForConditionalGeneration(hf.T5Config(**sizes)), seed=16)

    def untied():
        model = hf.T5ForConditionalGeneration(
            hf.T5Config(**sizes, num_decoder_layers=1, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
        model.lm_head.weight = torch.nn.Parameter(torch.empty(96, 16))
        return model

    def v1_1(config):
        for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "is_decoder"):
            del config[key]
        config.update(tie_word_embeddings=False, n_positions=512, output_past=True)

    seq2seq("t5_v1_1", untied, seed=17, edit=v1_1)
    seq2seq("mt5", lambda: hf.MT5ForConditionalGeneration(hf.MT5Config(**sizes)), seed=20)


def translation():
    """Targets of Marian and PEGASUS begin with the padding token, those of M2M100 and mBART with two tokens."""
    sizes = dict(vocab_size=96, d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
                 encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=40, scale_embedding=True,
                 forced_eos_token_id=None, init_std=0.02)
    marian = sizes | dict(pad_token_id=1, decoder_start_token_id=1, eos_token_id=0)
    seq2seq("marian", lambda: hf.MarianMTModel(hf.MarianConfig(**marian, activation_function="swish")), seed=70)

    def old_marian(config):
        config.update(add_bias_logits=False, add_final_layer_norm=False, normalize_before=False, normalize_embedding=False,
                      static_position_embeddings=True, num_hidden_layers=2)

    seq2seq("marian_two_tables", lambda: hf.MarianMTModel(
        hf.MarianConfig(**marian, decoder_vocab_size=100, share_encoder_decoder_embeddings=False)), seed=71, edit=old_marian)
    seq2seq("m2m_100", lambda: hf.M2M100ForConditionalGeneration(hf.M2M100Config(**sizes)), seed=72, forced=5)
    seq2seq("mbart", lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**sizes, decoder_start_token_id=2)), seed=73,
            forced=7)
    seq2seq("pegasus", lambda: hf.PegasusForConditionalGeneration(hf.PegasusConfig(**sizes)), seed=74)


@torch.no_grad()
def changed_seq2seq():
    """Changed folders: targets that begin with the padding token, and stored tables of sinusoidal positions, rounded."""
    results = {}

    def add(key, model, golden, first=None):
        ids, target = golden["ids_b"][None], golden["target_b"][None].clone()
        if first is not None:
            target[0, 0] = first
        results[f"{key}.logits"] = model(ids, decoder_input_ids=target).logits[0].float()

    for name, model_class in (("bart", hf.BartForConditionalGeneration), ("mbart", hf.MBartForConditionalGeneration),
                              ("m2m_100", hf.M2M100ForConditionalGeneration)):
        model = model_class.from_pretrained(FOLDER / name).eval().double()
        add(name, model, load_file(FOLDER / name / "golden.safetensors"), model.config.pad_token_id)
    for name, model_class in (("marian", hf.MarianMTModel), ("pegasus", hf.PegasusForConditionalGeneration)):
        model = model_class.from_pretrained(FOLDER / name).eval().double()
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.weight.bfloat16())
        results["positions"] = model.model.encoder.embed_positions.weight.float()
        add(name, model, load_file(FOLDER / name / "golden.safetensors"))
    save_file(results, FOLDER / "changed_seq2seq.safetensors")


@with_some_seed
@torch.no_grad()
def whisper(*, seed):
    """The vocabulary is like that of the published models: 256 bytes, the end, the tokens of prompts, and times, here of
    a window of 0.2 seconds. greedy_ continues the prompt; timed_ follows the rules of times, up to the end or 40 positions."""
    torch.manual_seed(seed)
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>"]
    times = [f"<|{n / 50:.2f}|>" for n in range(11)]
    end, start, no_times = 256, 257, 261
    sizes = dict(vocab_size=262 + len(times), num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
                 encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=4, decoder_attention_heads=4,
                 max_source_positions=10, max_target_positions=40, pad_token_id=end, bos_token_id=end, eos_token_id=end,
                 decoder_start_token_id=start)
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes, begin_suppress_tokens=[end])).eval()
    draw(model)
    model.model.decoder.embed_tokens.weight[no_times:] *= 1.5  # makes times likelier than most text
    model.double()
    rules = hf.GenerationConfig(eos_token_id=end)
    rules.no_timestamps_token_id, rules.max_initial_timestamp_index = no_times, 50
    rules = hf.WhisperTimeStampLogitsProcessor(rules, begin_index=3)
    golden = {"prompt": torch.tensor([start, start + 1, start + 2])}
    for key, length in zip("ab", (4, 9)):
        features, target = torch.randn(1, 8, 20, dtype=torch.double).float(), ids_of(length, 96, seed + length)

        def continued(count, process):
            ids = golden["prompt"][None]
            for _ in range(count):
                logits = process(ids, model(features.double(), decoder_input_ids=ids).logits[:, -1])[0]
                best = logits.topk(2).values
                if best[0] - best[1] < 3e-3:
                    raise CloseCall
                ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
                if process is rules and ids[0, -1] == end:
                    return ids[0, 3:-1]
            return ids[0, 3:]

        golden[f"features_{key}"], golden[f"target_{key}"] = features, target[0]
        golden[f"logits_{key}"] = model(features.double(), decoder_input_ids=target).logits[0]
        golden[f"greedy_{key}"] = continued(NEW_TOKENS, lambda ids, logits: logits)
        golden[f"timed_{key}"] = continued(38, rules)
        if (golden[f"timed_{key}"] > no_times).sum() < 3:
            raise CloseCall  # too few times to test the rules
    print(f"whisper: logits up to {golden['logits_b'].abs().max():.3g}, {golden['timed_a'].tolist()}")
    save("whisper", model, golden)
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.add_special_tokens(special + times)
    t.save(str(FOLDER / "whisper/tokenizer.json"))


@torch.no_grad()
def differential(seed, seq=9):
    """The attention of one layer of DiffLlama, without rotary embeddings."""
    torch.manual_seed(seed)
    config = hf.DiffLlamaConfig(**(SIZES | dict(num_key_value_heads=4)), attn_implementation="eager")
    module = hf.models.diffllama.modeling_diffllama.DiffLlamaAttention(config, layer_idx=1)
    for p in module.parameters():
        torch.nn.init.normal_(p, 0, 1 / math.sqrt(p.shape[-1]))
    module.float().double()
    x = torch.randn(1, seq, 16).double()
    hides = torch.full((seq, seq), -math.inf, dtype=torch.double).triu(1)
    still = torch.ones(1, seq, 4, dtype=torch.double), torch.zeros(1, seq, 4, dtype=torch.double)
    out = module(x, still, hides[None, None])[0]
    lambdas = [torch.exp((q * k).sum()) for q, k in ((module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2))]
    golden = {key: getattr(module, key + "_proj").weight for key in "qkvo"}
    golden |= {"x": x[0], "out": out[0], "lambda": (lambdas[0] - lambdas[1] + module.lambda_init).reshape(1),
               "lambda_init": torch.tensor([module.lambda_init])}
    save_file({k: v.float().contiguous() for k, v in golden.items()}, FOLDER / "differential.safetensors")


def tokenizer(folder, split):
    """A byte-level BPE tokenizer: all bytes, four merges, three special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w"), ("Ã", "©")]
    vocab = {t: i for i, t in enumerate(letters + [a + b for a, b in merges])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    from tokenizers import Regex
    t.pre_tokenizer = byte_level if split is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), byte_level])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    t.save(str(FOLDER / folder / "tokenizer.json"))
    config = {"add_bos_token": False, "eos_token": "<|im_end|>", "bos_token": None, "chat_template": CHATML}
    (FOLDER / folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    text = "<|im_start|>hello w\u00e9rld 12"
    return {"text": text, "ids": t.encode(text).ids}


def rope():
    """Frequencies and the factor of cos and sin for configs with heads of 16."""
    cases = []
    scalings = [
        ({"rope_type": "linear", "factor": 4.0}, 0),
        ({"rope_type": "dynamic", "factor": 2.0}, 0),
        ({"rope_type": "dynamic", "factor": 2.0}, 100),
        ({"rope_type": "dynamic", "factor": 3.0}, 1000),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}, 0),
        ({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 9.0,
          "original_max_position_embeddings": 8192}, 0),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 0),
        ({"rope_type": "yarn", "factor": 40.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
          "original_max_position_embeddings": 4096}, 0),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "original_max_position_embeddings": 64}, 0),
        ({"rope_type": "yarn", "factor": 40.0, "mscale": 0.9, "mscale_all_dim": 0.7,
          "original_max_position_embeddings": 64}, 0),
        ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
          "short_factor": [1.0 + 0.1 * j for j in range(8)], "long_factor": [2.0 + j for j in range(8)]}, 0),
        ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
          "short_factor": [1.0 + 0.1 * j for j in range(8)], "long_factor": [2.0 + j for j in range(8)]}, 17),
    ]
    for theta in (10000.0, 500000.0):
        for scaling, length in scalings:
            config = hf.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64,
                                    rope_parameters=scaling | {"rope_theta": theta})
            frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, seq_len=length or None)
            cases.append({"theta": theta, "length": length, "scaling": scaling, "frequencies": frequencies.tolist(),
                          "attention_factor": factor})
    (FOLDER / "rope.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


def main():
    hf.logging.set_verbosity_error()
    decoders_of_all_kinds()
    decoders_of_2024_and_later()
    decoders_of_2022()
    fused_experts()
    deepseek()
    ministral3()
    clipped()
    lfm2()
    qwen3_next()
    gpt_oss_mxfp4()
    encoders()
    encoders_of_2020_and_later()
    vit()
    dinov2()
    clip()
    siglip(98)
    bart()
    t5()
    translation()
    changed_seq2seq()
    whisper(seed=75)
    differential(18)
    rope()
    cases = {"qwen2": tokenizer("qwen2", QWEN2), "qwen3": tokenizer("qwen3", QWEN2)}
    (FOLDER / "tokens.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
