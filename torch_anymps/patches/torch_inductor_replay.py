"""torch.compile(mode="reduce-overhead") replays CUDA graphs alone: for mps torch_anymps.inductor.replay does it."""

import functools

WHY = 'torch.compile(mode="reduce-overhead") takes graphs of mps, of which torch_anymps replays what may be replayed.'
TARGETS = ("torch._inductor.cudagraph_utils", "torch._inductor.output_code")


def apply(module, replace):
    if module.__name__ == "torch._inductor.cudagraph_utils":
        check = module.check_multiple_devices_or_any_cpu_nodes
        replace(module, "check_multiple_devices_or_any_cpu_nodes", _with_mps(check))
    else:
        replace(module, "maybe_handle_backward_generation", _but_for_mps(module.maybe_handle_backward_generation))
        replace(module, "cudagraph_post_compile", _by_partitions(module))


def _with_mps(check):
    @functools.wraps(check)
    def check_devices(device_node_mapping):
        from torch._inductor import config
        from torch._inductor.utils import is_using_cudagraph_partition

        left_out = {"meta", "cpu"} if is_using_cudagraph_partition() else {"meta"}
        types = {device.type for device in device_node_mapping} - left_out
        if types == {"mps"} and config.cudagraph_policy is not None:
            return None
        return check(device_node_mapping)

    return check_devices


def _by_partitions(module):
    """Graphs with operators that must not be replayed: the policy gets the partitions between these, not the whole."""
    whole = module.cudagraph_post_compile

    @functools.wraps(whole)
    def cudagraph_post_compile(example_inputs, compiled_graph, *args):
        from torch._inductor import compile_fx, config

        maps = compiled_graph.partition_maps
        # PyTorch counts partitions, with what lies between them, where there is more than one.
        is_whole = maps is None or (maps and not compiled_graph.counter_deltas.get("cudagraph_partitions"))
        if is_whole or "mps" not in compiled_graph.device_types:
            return whole(example_inputs, compiled_graph, *args)
        policy, original = config.cudagraph_policy, compile_fx.cudagraphify

        def cudagraphify(model, static_input_idxs, **kwargs):
            return policy.cudagraphify(model, example_inputs, static_input_idxs, **kwargs)

        compile_fx.cudagraphify = cudagraphify
        try:
            return module.cudagraph_partition_post_compile(example_inputs, compiled_graph, *args)
        finally:
            compile_fx.cudagraphify = original

    return cudagraph_post_compile


def _but_for_mps(handle):
    """A backward that is not replayed must tell CUDA's trees of graphs, of which mps has none."""

    @functools.wraps(handle)
    def handle_backward(compiled_graph, boxed_forward_device_index):
        if "cuda" in compiled_graph.device_types:
            handle(compiled_graph, boxed_forward_device_index)

    return handle_backward
