/* SPDX-License-Identifier: BSD-2-Clause */
/* Any bytes as a head: no step outside, lawful answers, the flow hash's opinion of the same bytes. */
#include "datapath/bytes.h"
#include "datapath/layout.h"
#include "fuzz.h"
#include "vhostlane/flow_hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint32_t length = size > 4096 ? 4096 : (uint32_t)size;
	struct layout l, cut;
	struct vl_flow flow;

	layout_parse(data, length, &l);
	MUST(l.level <= LAYOUT_TRANSPORT);
	if (l.level == LAYOUT_UNKNOWN) {
		MUST(!l.family && !l.protocol && !l.flags && !l.network && !l.transport && !l.payload && !l.end);
		return 0;
	}
	MUST(l.network >= 14 && l.network + (l.family == 4 ? 20u : 40u) <= length);
	MUST(l.transport <= length && l.payload <= length);
	MUST((l.level == LAYOUT_TRANSPORT) == (l.payload != 0));
	MUST(!l.payload || (l.payload >= l.transport + 8u && l.transport > l.network));
	MUST(!(l.flags & LAYOUT_FRAGMENT) || !l.transport);
	/* As deep as the flow hash looks. */
	layout_parse(data, length < VL_FLOW_DEPTH ? length : VL_FLOW_DEPTH, &cut);
	vl_flow_parse(data, data + length, &flow);
	if (cut.level == LAYOUT_UNKNOWN)
		return 0;
	MUST(flow.protocol == cut.protocol);
	if (cut.level == LAYOUT_TRANSPORT)
		MUST(flow.source_port == load_word(data + cut.transport) && flow.destination_port == load_word(data + cut.transport + 2));
	return 0;
}
