//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

// Thread-local: calls of other threads neither join nor invalidate the capture, and it
// must end on the thread where it began.
octet_status octet_capture_begin(const octet_device *d, octet_handle s) {
	ENTER(d);
	TRY(d->api, cuStreamBeginCapture_v2, (CUstream)s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	return (octet_status){0};
}

octet_status octet_capture_end(const octet_device *d, octet_handle s, int discard, octet_handle *out) {
	CUgraph graph = NULL;
	CUgraphExec exec = NULL;
	ENTER(d);
	TRY(d->api, cuStreamEndCapture, (CUstream)s, &graph);
	const int status = discard ? 0 : d->api->cuGraphInstantiateWithFlags(&exec, graph, 0);
	// The executable graph does not need the graph any more.
	TRY(d->api, cuGraphDestroy, graph);
	if (status)
		return (octet_status){"cuGraphInstantiateWithFlags", status};
	*out = (octet_handle)exec;
	return (octet_status){0};
}

octet_status octet_graph_launch(const octet_device *d, octet_handle g, octet_handle s) {
	ENTER(d);
	TRY(d->api, cuGraphLaunch, (CUgraphExec)g, (CUstream)s);
	return (octet_status){0};
}

octet_status octet_graph_free(const octet_device *d, octet_handle g) {
	ENTER(d);
	TRY(d->api, cuGraphExecDestroy, (CUgraphExec)g);
	return (octet_status){0};
}
