"""Small models of every family with unusual sizes, built by transformers. All parameters are random and large enough to matter, weights,
biases and norms alike, so that no part of the computation is trivially zero or one."""
import torch
import transformers

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = dict(vocab_size=61, n_embd=36, n_layer=3, n_head=3, n_positions=23, n_inner=52, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
LLAMA = dict(vocab_size=67, hidden_size=40, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5, intermediate_size=54, max_position_embeddings=64)
BERT = dict(vocab_size=59, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50, max_position_embeddings=27, type_vocab_size=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None)
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)

# label: (class of the model, settings of its config)
MODELS = {
    "gpt2-tied": ("GPT2LMHeadModel", GPT2),
    "gpt2-untied": ("GPT2LMHeadModel", {**GPT2, "n_head": 4, "n_inner": None, "tie_word_embeddings": False, "activation_function": "gelu"}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-gqa-biases": ("LlamaForCausalLM", {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 42, "head_dim": 10, "attention_bias": True, "mlp_bias": True}),
    "llama-rope3-tied": ("LlamaForCausalLM", {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 14, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-rope-linear": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 36, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 38, "head_dim": 12, "attention_bias": True}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 30, "head_dim": 8, "sliding_window": None}),
    "bert": ("BertForMaskedLM", BERT),
    "megatron-bert": ("MegatronBertForMaskedLM", {**BERT, "num_attention_heads": 2}),
}


def config_of(label):
    architecture, settings = MODELS[label]
    kind = getattr(transformers, architecture).config_class
    tokens = {} if "Bert" in architecture else NO_TOKENS
    return kind(**{**settings, **tokens})


def randomize(model, seed, deviation=0.25):
    """Chooses matrices such that values neither vanish nor explode over the layers, biases clearly different from 0, and norms around 1."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm else deviation * noise)


def random_model(label, seed):
    model = getattr(transformers, MODELS[label][0])(config_of(label)).double()
    randomize(model, seed)
    return model.eval()
