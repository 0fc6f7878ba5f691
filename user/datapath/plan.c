/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/plan.h"

#include <stdlib.h>

void plan_free(struct plan *plan)
{
	if (!plan)
		return;
	for (uint32_t i = 0; i < plan->port_count; i++)
		free(plan->ports[i].slots);
	for (uint32_t i = 0; i < plan->domain_count; i++) {
		forwarding_free(plan->domains[i].forwarding);
		free(plan->domains[i].flood_ports);
	}
	for (uint32_t i = 0; i < plan->worker_count; i++)
		free(plan->shares[i].pairs);
	free(plan);
}
