# Needs gguf==0.19.0 torch==2.15.0 transformers==5.24.0 (in a virtual environment): writes bert.gguf and nomic_bert.gguf,
# tiny encoders in the form that llama.cpp gives them, and encoders.json: lines, and for each file the ids and the
# embeddings of transformers, computed in double with the weights that the file holds.
#
#   python make_encoders.py
import json
import pathlib

import gguf
import numpy as np
import torch
import transformers as hf
from gguf import GGMLQuantizationType as Type
from gguf import quants

HERE = pathlib.Path(__file__).parent
PIECES = """[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the a cat dog ##s sat run ##ning , . ! ##[ [ ] e ##e on mat who ##k cafe""".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = ["", "The cat sat on the mat.", "Dogs running, running!", "Caf\u00e9 [MASK] e[e]", "unknownword \u732b", "the " * 30, "the [unused0] cats"]
NAMES = {"embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
         "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
         "encoder.layer.": "blk.", "attention.self.query": "attn_q", "attention.self.key": "attn_k",
         "attention.self.value": "attn_v", "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
         "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}
NOMIC = {"embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
         "embeddings.LayerNorm": "token_embd_norm", "layers.": "blk.", "self_attn.o_proj": "attn_output", "mlp.up_proj": "ffn_up",
         "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "post_attention_layernorm": "attn_output_norm",
         "post_mlp_layernorm": "layer_output_norm"}


def phantom(piece, is_old):
    """A space before words instead of ## within them."""
    is_special = piece.startswith("[") and piece.endswith("]") if is_old else piece in SPECIAL
    return piece if is_special else piece[2:] if piece.startswith("##") else "\u2581" + piece


def renamed(name, names):
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name


@torch.no_grad()
def write(name, arch, model, tensors, kinds, pooling, is_old):
    """`tensors` by the names of transformers; `kinds`: types of the tensors whose names end so."""
    c = model.config
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_layer_norm_eps(c.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_token_list([phantom(piece, is_old) for piece in PIECES])
    if is_old:
        writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    else:
        writer.add_tokenizer_pre("default")
        writer.add_token_types([gguf.TokenType.CONTROL if p in SPECIAL else gguf.TokenType.NORMAL for p in PIECES])
    for kind in ("unk", "sep", "pad", "mask"):
        getattr(writer, f"add_{kind}_token_id")(PIECES.index(f"[{kind.upper()}]"))
    writer.add_uint32(f"tokenizer.ggml.{'cls' if is_old else 'bos'}_token_id", PIECES.index("[CLS]"))
    own = model.state_dict()
    for theirs, values in tensors(own).items():
        kind = next((k for end, k in kinds.items() if theirs.endswith(end)), Type.F32)
        blocks = quants.quantize(values.float().numpy(), kind)
        writer.add_tensor(theirs, blocks, raw_dtype=kind)
        values.copy_(torch.from_numpy(np.ascontiguousarray(quants.dequantize(blocks, kind))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.double()
    tokenizer = hf.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})
    limit = c.max_position_embeddings
    ids = [tokenizer(line, truncation=True, max_length=limit).input_ids for line in LINES]
    hidden = [model(torch.tensor([row])).last_hidden_state[0] for row in ids]
    vectors = [h[0] if pooling == gguf.PoolingType.CLS else h.mean(0) for h in hidden]
    return {"ids": ids, "embeddings": [[round(float(x), 9) for x in v] for v in vectors]}


def draw(model):
    torch.manual_seed(20260728)
    for name, p in model.named_parameters():
        scale = 0.6 if "embeddings" in name and p.dim() == 2 else 0.3 if p.dim() == 2 else 0.2
        torch.nn.init.normal_(p, 1 if p.dim() == 1 and "norm" in name.lower() and name.endswith("weight") else 0, scale)
    return model.eval()


def main():
    sizes = dict(vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                 max_position_embeddings=20)
    bert = draw(hf.BertModel(hf.BertConfig(**sizes), add_pooling_layer=False))
    nomic = draw(hf.NomicBertModel(hf.NomicBertConfig(**sizes), add_pooling_layer=False))

    def of_bert(own):
        return {renamed(name, NAMES): values for name, values in own.items() if "position_ids" not in name}

    def of_nomic(own):
        """Queries, keys and values in one tensor, whose numbers are exact in bfloat16."""
        result = {}
        for name, values in own.items():
            layer, _, part = name.partition(".self_attn.")
            if part in ("q_proj.weight", "k_proj.weight", "v_proj.weight"):
                values.copy_(values.bfloat16().float())
                joined = renamed(layer, NOMIC) + ".attn_qkv.weight"
                result[joined] = torch.cat([result[joined], values]) if joined in result else values.clone()
            else:
                result[renamed(name, NOMIC)] = values
        return result

    golden = {"lines": LINES,
              "bert": write("bert", "bert", bert, of_bert, {"token_embd.weight": Type.F16, "ffn_up.weight": Type.Q8_0, "attn_v.weight": Type.F16,
                                                            "position_embd.weight": Type.F16}, gguf.PoolingType.CLS, False),
              "nomic_bert": write("nomic_bert", "nomic-bert", nomic, of_nomic, {"token_embd.weight": Type.Q8_0, "attn_qkv.weight": Type.BF16},
                                  gguf.PoolingType.MEAN, True)}
    text = json.dumps(golden, separators=(",", ":")).replace('"nomic_bert"', '\n"nomic_bert"').replace('"bert"', '\n"bert"')
    (HERE / "encoders.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
