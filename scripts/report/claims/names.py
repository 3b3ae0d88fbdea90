"""The names that a file of claims may use: one that is misspelt must not pass for a claim that nothing measures."""

# Conditions: where a claim says that it holds.
CONDITIONS = ("from_parameters", "not_below_parameters", "from_sequence", "every", "against")
# Effects that neither a sweep nor a dry run judges.
UNJUDGED = ("batch_factor", "claimed_tokens_per_second")
# What a guide's settings and sums are called, and the bytes that dry runs are held against.
STATED = frozenset("""
    accumulation activation_checkpointing activation_offload activations_percent adafactor adafactor_mb adam8bit
    adamw adamw_mb attention_percent batch before bf16_gb block buffer bytes bytes_per_head bytes_per_parameter
    checkpoint_every choices claimed_gb claimed_memory_gb critical data_parallel device device_gb devices
    dynamic_batch emergency empty_cache_every enforce_eager every_steps experts flash_attention fp32_gb fp8 fp8_gb
    gpu_gb gradient_checkpointing gradients_gb gradients_mb gradients_percent heads hidden inference_share
    inference_tensor_parallel keys layers limit_gb local_blocks loss_scale max memory_gb min offload_activations
    offload_optimizer on_by_default optimized_gb optimizer optimizer_gb optimizer_offload optimizer_percent order
    original_gb overhead_percent param_offload parameters parameters_gb parameters_mb parameters_percent parts
    per_layer_gb per_layer_mb percent pin_memory pipeline_parallel precision prefetch ranks ratio recomputed_gb
    reference_param_offload reshard_after_forward sequence share smooth status target tensor_parallel tensors tf32
    tokens_per_device total_gb total_without_activations_gb used_gb warning workers zero_stage
""".split())
# Memory that claims name as `of` and no sweep tells apart.
OTHER_MEMORY = ("host memory", "host memory of prefetching")

FILE_KEYS = {"schema", "guides", "claims"}
CLAIM_KEYS = {"id", "text", "figures", "arithmetic"}
TABLE_KEYS = {"schema", "techniques"}
TECHNIQUE_KEYS = {"name", "title", "settings", "trades", "bytes", "excludes", "parts", "claims"}


def require_known(names, known, of: str) -> None:
    """Raises ValueError naming those of `of` that are not known."""
    if unknown := sorted(str(name) for name in names if name not in known):
        raise ValueError(f"{of} has the unknown {', '.join(unknown)}")
