"""torch.compile(mode="reduce-overhead") replays CUDA graphs alone: for mps torch_anymps.inductor.replay does it."""

import functools

WHY = 'torch.compile(mode="reduce-overhead") takes graphs that are all on mps, which are replayed by torch_anymps.'
TARGETS = ("torch._inductor.cudagraph_utils", "torch._inductor.output_code")


def apply(module, replace):
    if module.__name__ == "torch._inductor.cudagraph_utils":
        check = module.check_multiple_devices_or_any_cpu_nodes
        replace(module, "check_multiple_devices_or_any_cpu_nodes", _with_mps(check))
    else:
        replace(module, "maybe_handle_backward_generation", _but_for_mps(module.maybe_handle_backward_generation))


def _with_mps(check):
    @functools.wraps(check)
    def check_devices(device_node_mapping):
        from torch._inductor import config

        types = {device.type for device in device_node_mapping} - {"meta"}
        if types == {"mps"} and config.cudagraph_policy is not None:
            return None
        return check(device_node_mapping)

    return check_devices


def _but_for_mps(handle):
    """A backward that is not replayed must tell CUDA's trees of graphs, of which mps has none."""

    @functools.wraps(handle)
    def handle_backward(compiled_graph, boxed_forward_device_index):
        if "cuda" in compiled_graph.device_types:
            handle(compiled_graph, boxed_forward_device_index)

    return handle_backward
