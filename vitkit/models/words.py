"""The names of a model's settings in timm and transformers, for error messages that name ours."""

from __future__ import annotations

# Their name -> our name for the setting, or a sentence if there is no direct equivalent.
OTHER_WORDS: dict[str, str] = {
    # timm
    "img_size": "image_size",
    "in_chans": "channels",
    "patch_size": "patch",
    "embed_dim": "width",
    "num_heads": "heads",
    "mlp_ratio": "use mlp_width, the hidden size itself: width times mlp_ratio",
    "drop_path_rate": "stochastic_depth",
    "drop_rate": "use dropout, which is applied after positions, attention and both MLP layers, but not before the head",
    "pos_drop_rate": "dropout",
    "proj_drop_rate": "dropout",
    "attn_drop_rate": "attention_dropout",
    "patch_drop_rate": "patch_dropout",
    "global_pool": "it is called pool here: 'token', 'mean' for 'avg', 'map', 'seqpool' or 'none'",
    "pos_embed": "positions",
    "no_embed_class": "use prefix_positions=False for no_embed_class=True",
    "reg_tokens": "registers",
    "qkv_bias": "queries, keys and values always have biases, as in the official code",
    "init_values": "layer_scale",
    "fc_norm": "use final_norm='pooled' for fc_norm=True",
    "act_layer": "gelu",
    "norm_layer": "norms are LayerNorms; only norm_epsilon can be set",
    "dynamic_img_size": "use model.set_image_size(384) to change the image size",
    "weight_init": "weights are always initialised as in the official code",
    "pretrained": "create_model returns untrained models; vitkit.load('B/16@TAG') loads trained weights",
    "pretrained_cfg": "create_model returns untrained models; vitkit.load('B/16@TAG') loads trained weights",
    "checkpoint_path": "vitkit.load('B/16@FILE') reads a weight file",
    "cache_dir": "vitkit.load('B/16@TAG') downloads weights to the cache in HF_HOME",
    "features_only": "model.forward_features(images) returns tokens; model.features(images) returns what the head reads",
    "out_indices": "model(images, record=Record('tokens', layers=[...])) keeps the tokens of these layers",
    # transformers
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp_width",
    "num_channels": "channels",
    "num_labels": "num_classes",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_epsilon",
    "hidden_act": "gelu",
}
