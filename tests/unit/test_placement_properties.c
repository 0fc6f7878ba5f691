/* SPDX-License-Identifier: BSD-2-Clause */
/* What must hold of placement on any machine, with any guests; random ones come from a fixed seed. */
#include "placement_world.h"

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static unsigned below(uint64_t *seed, unsigned limit)
{
	return (unsigned)(next_random(seed) % limit);
}

static void random_machine(uint64_t *seed)
{
	unsigned cpus[8], nodes = 1 + below(seed, 8), threads = 1 + below(seed, 2), i, k, has_cpu = 0;
	struct world *w;

	for (i = 0; i < nodes; i++)
		has_cpu += cpus[i] = below(seed, 4) ? threads * (1 + below(seed, 6)) : 0; /* a quarter without CPUs, and uneven */
	if (!has_cpu)
		cpus[0] = 2;
	w = machine(nodes, cpus, threads);
	for (i = 0; i < nodes; i++)
		for (k = 0; k < i; k++)
			w->topology.distance[i][k] = w->topology.distance[k][i] = (uint8_t)(11 + below(seed, 100));
	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].usable = below(seed, 5) > 0;
	w->workers[below(seed, w->in.worker_count)].usable = true;
	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].stalled = below(seed, 15) == 0;
	/* Crowded here and there, everywhere, or nowhere. */
	for (i = 0, k = below(seed, 3); k && i < w->in.worker_count; i++)
		w->workers[i].others_permille = k == 1 ? below(seed, 600) : PLACEMENT_CROWDED_PERMILLE + below(seed, 700);
	w->in.no_gathering = below(seed, 5) == 0;
	w->in.policy = below(seed, 3) ? PLACEMENT_PER_CPU : below(seed, PLACEMENT_POLICY_COUNT);
	w->in.workers_per_port = below(seed, 5);
}

static void random_guests(uint64_t *seed)
{
	struct world *w = &world;
	unsigned ports = 1 + below(seed, below(seed, 8) ? 24 : 256), port, i, k;

	for (port = 0; port < ports; port++) {
		unsigned pairs = 1 + below(seed, 16), vcpus = below(seed, 4), home = below(seed, w->topology.node_count + 1);
		struct cpulist set = { 0 };

		for (k = 0; k < vcpus; k++)
			cpulist_add(&set, below(seed, w->topology.cpu_count));
		for (i = 0; i < pairs; i++) {
			struct placement_pair *pair = add_pair(w, port, i);

			pair->ring_node = (int)home - 1;
			pair->vcpu_node = (int)below(seed, w->topology.node_count + 1) - 1;
			pair->kick_cpu = (int)below(seed, w->topology.cpu_count + 1) - 1;
			pair->vcpus = set;
			pair->load_permille = below(seed, 3) ? 0 : below(seed, 4) ? below(seed, 60) : below(seed, 700);
			pair->node_wanted = below(seed, 20) ? -1 : (int)below(seed, w->topology.node_count);
			pair->worker_wanted = below(seed, 40) ? -1 : (int)below(seed, w->in.worker_count);
			pair->worker_now = (int)below(seed, w->in.worker_count + 1) - 1;
			pair->standing_us = below(seed, 10) ? 0 : below(seed, 100);
			pair->rest_ms = below(seed, 10) ? 0 : below(seed, 2000);
		}
	}
}

static int node_of(const struct world *w, int worker)
{
	return w->workers[worker].node;
}

/* May pairs be given to it: usable, and not stalled while another is not? */
static bool is_serving(const struct world *w, unsigned worker)
{
	bool all_stalled = true;

	for (unsigned i = 0; i < w->in.worker_count; i++)
		all_stalled &= !w->workers[i].usable || w->workers[i].stalled;
	return w->workers[worker].usable && (all_stalled || !w->workers[worker].stalled);
}

/* Does a worker of @node serve? */
static bool is_served(const struct world *w, int node)
{
	for (unsigned i = 0; i < w->in.worker_count; i++)
		if (is_serving(w, i) && node_of(w, (int)i) == node)
			return true;
	return false;
}

static bool is_crowded(const struct world *w)
{
	for (unsigned i = 0; i < w->in.worker_count; i++)
		if (w->workers[i].others_permille >= PLACEMENT_CROWDED_PERMILLE)
			return true;
	return false;
}

/* Did an earlier pair leave the same worker? Those that are gathered or split off go together, as one move. */
static bool goes_with_an_earlier_one(const struct world *w, unsigned i)
{
	for (unsigned k = 0; k < i; k++)
		if (w->pairs[k].worker_now == w->pairs[i].worker_now && w->choices[k].worker != w->pairs[k].worker_now)
			return true;
	return false;
}

static void check_lawful(const struct world *w, unsigned changed)
{
	unsigned i, differ = 0, paid = 0;

	for (i = 0; i < w->in.pair_count; i++) {
		const struct placement_pair *pair = &w->pairs[i];
		const struct placement_choice *choice = &w->choices[i];
		bool must = pair->worker_now < 0 || !is_serving(w, (unsigned)pair->worker_now) || pair->worker_wanted >= 0 || pair->node_wanted >= 0;

		assert_in_range(choice->worker, 0, w->in.worker_count - 1);
		assert_true(w->workers[choice->worker].usable);
		assert_true(choice->worker == pair->worker_wanted || is_serving(w, (unsigned)choice->worker));
		assert_int_not_equal(choice->reason, PLACEMENT_REASON_NONE);
		if (pair->worker_wanted >= 0 && w->workers[pair->worker_wanted].usable)
			assert_int_equal(choice->worker, pair->worker_wanted);
		else if (pair->worker_wanted < 0 && pair->node_wanted >= 0 && is_served(w, pair->node_wanted))
			assert_int_equal(node_of(w, choice->worker), pair->node_wanted);
		else if (w->in.policy == PLACEMENT_PER_CPU && must && pair->worker_wanted < 0 && pair->node_wanted < 0 &&
			 pair->ring_node >= 0 && is_served(w, pair->ring_node))
			assert_int_equal(node_of(w, choice->worker), pair->ring_node);
		differ += choice->worker != pair->worker_now;
		paid += choice->worker != pair->worker_now && !must && !(is_crowded(w) && goes_with_an_earlier_one(w, i));
		if (choice->worker == pair->worker_now && pair->worker_wanted < 0 && pair->node_wanted < 0)
			assert_int_equal(choice->reason, choice->reason == PLACEMENT_REASON_PORT_THREAD && w->in.policy != PLACEMENT_PER_CPU ?
								 PLACEMENT_REASON_PORT_THREAD : PLACEMENT_REASON_STAYS);
	}
	assert_int_equal(differ, changed);
	if (w->in.policy == PLACEMENT_PER_CPU && !w->in.afresh)
		assert_true(paid <= w->in.moves_max);
}

static void random_worlds(void **state)
{
	static struct placement_choice again[PAIRS_MAX];
	uint64_t seed = 0x76686f73746c616e;
	unsigned round, plans, i;

	for (round = 0; round < 600; round++) {
		struct world *w = &world;

		random_machine(&seed);
		random_guests(&seed);
		measure(w);
		w->in.moves_max = below(&seed, 2) ? ALL_MOVES : below(&seed, 200);
		w->in.afresh = round % 3 == 0;
		w->in.urgent = round % 7 == 0;
		check_lawful(w, compute(w));
		memcpy(again, w->choices, sizeof(again));
		compute(w);
		assert_memory_equal(again, w->choices, w->in.pair_count * sizeof(again[0])); /* deterministic */

		w->in.afresh = w->in.urgent = false;
		/* The result is where it stays: at once where all moves are allowed; after a few plans where some pairs stand whatever is done
		 * for them (every second round), the first plan was urgent, or a plan that splits a worker leaves all else to the next. */
		for (plans = 0; plans < PAIRS_MAX; plans++) {
			apply(w);
			for (i = 0; round % 2 == 0 && i < w->in.pair_count; i++)
				w->pairs[i].standing_us = 0;
			w->in.moves_max = max_u32(w->in.moves_max, 1);
			if (!compute(w))
				break;
			check_lawful(w, compute(w));
			if (w->in.moves_max == ALL_MOVES && ((!is_crowded(w) && round % 2 == 0 && round % 7 != 0) || plans > 30))
				fail_msg("round %u does not settle", round);
		}
		assert_true(plans < PAIRS_MAX);
	}
}

static void equal_loads_spread_evenly(void **state)
{
	static const unsigned port_counts[] = { 1, 2, 3, 7, 24, 256 };
	unsigned a, pairs, load, port, i, k;

	for (a = 0; a < ARRAY_SIZE(port_counts); a++)
		for (pairs = 1; pairs <= 16; pairs++)
			for (load = 0; load <= 60; load += 60) {
				struct world *w = MACHINE(1, 4, 4);
				bool overfull = load * pairs * port_counts[a] > 8 * (PLACEMENT_FULL_PERMILLE - 2 * load);

				if (load && overfull) /* the rule then is: not to a full worker */
					continue;
				for (i = 0; i < pairs; i++) /* in turns, not port by port */
					for (port = 0; port < port_counts[a]; port++) {
						struct placement_pair *pair = add_pair(w, port, i);

						pair->ring_node = (int)port % 2;
						pair->load_permille = load;
					}
				compute(w);
				for (port = 0; port < port_counts[a]; port++) {
					unsigned low = UINT32_MAX, high = 0, first = port % 2 * 4;

					for (k = first; k < first + 4; k++) {
						low = min_u32(low, on_worker(w, (int)k, (int)port));
						high = max_u32(high, on_worker(w, (int)k, (int)port));
					}
					assert_true(high - low <= 1);
					assert_int_equal(on_worker(w, -1, (int)port), 0);
				}
				assert_settled(w);
			}
}

/* ------------------------------------------------------------------ the product of machines, guests, queue pairs and policies */

static void two_nodes(void) { MACHINE(1, 4, 4); }
static void four_nodes(void) { MACHINE(1, 4, 4, 4, 4); }
static void siblings(void) { MACHINE(2, 8, 8); }
static void uneven(void) { MACHINE(1, 1, 7); }
static void memory_only(void) { MACHINE(1, 2, 2, 0, 3); }

static void take_away(int cpu)
{
	world.topology.cpus[cpu].online = false;
	world.topology.cpus[cpu].core = -1;
	world.workers[cpu].usable = false;
}

static void cpus_offline(void)
{
	struct world *w = MACHINE(2, 4, 4, 4);

	for (int cpu = 1; cpu < 8; cpu++) /* one thread of the first core, and a whole node */
		if (cpu != 2 && cpu != 3)
			take_away(cpu);
	assert_int_equal(w->in.worker_count, 12);
}

static void cpuset_of_one_and_a_half_nodes(void)
{
	struct world *w = MACHINE(1, 4, 4, 4, 4);

	for (unsigned cpu = 0; cpu < 16; cpu++)
		w->topology.cpus[cpu].allowed = w->workers[cpu].usable = cpu / 4 == 1 || cpu / 2 == 7;
}

static void one_cpu_left(void)
{
	MACHINE(1, 4, 4);
	for (int cpu = 0; cpu < 8; cpu++)
		if (cpu != 6)
			take_away(cpu);
}

static const struct {
	const char *name;
	void (*make)(void);
} machines[] = {
	{ "two nodes", two_nodes },	  { "four nodes", four_nodes },	    { "SMT siblings", siblings },
	{ "uneven nodes", uneven },	  { "memory-only node", memory_only }, { "CPUs offline", cpus_offline },
	{ "cpuset without whole nodes", cpuset_of_one_and_a_half_nodes },   { "one CPU left", one_cpu_left },
};

/* Guests by turns on all nodes, each with a vCPU bound to a CPU of its node, if @bound. */
static void invent_guest(struct world *w, unsigned port, unsigned pairs, bool bound)
{
	unsigned node = port % w->topology.node_count, i, k, nth = port / w->topology.node_count;
	struct cpulist vcpus = { 0 };

	for (i = k = 0; bound && i < w->topology.cpu_count; i++)
		if (w->topology.cpus[i].node == (int)node && k++ == nth % 4)
			cpulist_add(&vcpus, i);
	for (i = 0; i < pairs; i++) {
		struct placement_pair *pair = add_pair(w, port, i);

		pair->ring_node = (int)node;
		pair->vcpus = vcpus;
	}
}

/* The node that has to serve memory of @node: the nearest with a usable worker, of equals the first. */
static int serving_node(const struct world *w, int node)
{
	int best = -1;

	for (int to = 0; to < (int)w->topology.node_count; to++)
		if (is_served(w, to) && (best < 0 || topology_distance(&w->topology, node, to) < topology_distance(&w->topology, node, best)))
			best = to;
	return best;
}

static bool shares_vcpu(const struct world *w, const struct placement_pair *pair, int worker)
{
	return cpulist_has(&pair->vcpus, (unsigned)w->workers[worker].cpu);
}

static bool can_avoid_vcpus(const struct world *w, const struct placement_pair *pair, int node)
{
	for (unsigned i = 0; i < w->in.worker_count; i++)
		if (w->workers[i].usable && node_of(w, (int)i) == node && !shares_vcpu(w, pair, (int)i))
			return true;
	return false;
}

static void check_homes(const struct world *w)
{
	for (unsigned i = 0; i < w->in.pair_count; i++) {
		const struct placement_pair *pair = &w->pairs[i];
		int node = serving_node(w, pair->ring_node);

		assert_int_equal(node_of(w, w->choices[i].worker), node);
		if (can_avoid_vcpus(w, pair, node))
			assert_false(shares_vcpu(w, pair, w->choices[i].worker));
		else
			assert_int_equal(w->choices[i].reason, PLACEMENT_REASON_SHARES_VCPU);
	}
}

/* On each node the workers' counts differ by one at most, of each port and of all; if no vCPU stands in the way. */
static void check_balance(const struct world *w, unsigned ports, int node)
{
	for (int port = -1; port < (int)ports; port++) {
		unsigned low = UINT32_MAX, high = 0;

		if (port >= 0 && serving_node(w, port % (int)w->topology.node_count) != node)
			continue;
		for (unsigned i = 0; i < w->in.worker_count; i++) {
			if (!w->workers[i].usable || node_of(w, (int)i) != node)
				continue;
			low = min_u32(low, on_worker(w, (int)i, port));
			high = max_u32(high, on_worker(w, (int)i, port));
		}
		assert_true(high - low <= 1);
	}
}

/* Workers that serve a port, under a policy that ties them to it. */
static void check_workers_of_ports(const struct world *w, unsigned ports, unsigned pairs)
{
	unsigned usable = 0, wanted = w->in.policy == PLACEMENT_PER_PORT ? 1 : w->in.workers_per_port, i, port;

	for (i = 0; i < w->in.worker_count; i++)
		usable += w->workers[i].usable;
	for (port = 0; port < ports; port++) {
		unsigned different = 0;

		for (i = 0; i < w->in.worker_count; i++)
			different += on_worker(w, (int)i, (int)port) > 0;
		if (different != min_u32(min_u32(wanted, usable), pairs))
			fail_msg("port %u of %u: %u workers serve %u pairs, %u usable", port, ports, different, pairs, usable);
	}
}

/* Which of the product is being tried: for who reads of a failure. */
static struct context {
	const char *machine;
	unsigned guests, pairs;
	const char *policy;
	unsigned bound;
} context;

#define must(condition)                                                                                                             \
	do {                                                                                                                        \
		if (!(condition))                                                                                                   \
			fail_msg("%s, %u guests of %u pairs, %s%s: not %s", context.machine, context.guests, context.pairs, context.policy, \
				 context.bound ? ", vCPUs bound" : "", #condition);                                                \
	} while (0)

/* Something small happens. Return: how many pairs moved that had a place before. */
static unsigned moved(struct world *w)
{
	unsigned i, n = 0;

	check_lawful(w, compute(w));
	for (i = 0; i < w->in.pair_count; i++)
		n += w->pairs[i].worker_now >= 0 && w->choices[i].worker != w->pairs[i].worker_now;
	return n;
}

static unsigned now_on(const struct world *w, int worker)
{
	unsigned i, n = 0;

	for (i = 0; i < w->in.pair_count; i++)
		n += w->pairs[i].worker_now == worker;
	return n;
}

static unsigned usable_workers(const struct world *w, int *one)
{
	unsigned i, n = 0;

	for (i = 0; i < w->in.worker_count; i++)
		if (w->workers[i].usable && n++ == 0)
			*one = (int)i;
	return n;
}

static void check_small_changes(struct world *w, unsigned ports, unsigned pairs)
{
	unsigned left;
	int cpu = -1;

	apply(w);
	must(moved(w) == 0); /* nothing happened */
	if (ports < VL_PORTS_MAX) { /* a guest comes: nobody makes room for it; and goes: nobody takes its place */
		invent_guest(w, ports, pairs, false);
		must(moved(w) == 0);
		apply(w);
		w->in.pair_count -= pairs;
		must(moved(w) == 0);
		apply(w);
	}
	if (usable_workers(w, &cpu) > 1) { /* a CPU goes: only what it served; and is back: no more than that */
		left = now_on(w, cpu);
		w->workers[cpu].usable = false;
		must(moved(w) == left);
		apply(w);
		must(moved(w) == 0);
		w->workers[cpu].usable = true;
		must(moved(w) <= left);
		apply(w);
	}
	for (unsigned i = 0; i < w->in.pair_count; i++) /* load that comes and goes below the hysteresis, not so little as to trickle */
		w->pairs[i].load_permille = w->in.pair_count <= 16 ? 60 + i % 7 : 0;
	measure(w);
	compute(w);
	apply(w);
	for (unsigned noise = 0; noise < 4; noise++) {
		for (unsigned i = 0; i < w->in.pair_count; i++)
			w->pairs[i].load_permille = w->in.pair_count <= 16 ? 60 + (i + 3 * noise) % 7 : 0;
		measure(w);
		must(moved(w) == 0);
	}
}

static void product(void **state)
{
	static const unsigned guest_counts[] = { 1, 2, 3, 4, 7, 12, 24, 64, 256 };
	enum placement_policy policy;
	unsigned m, g, pairs, bound, port;
	int node;

	for (m = 0; m < ARRAY_SIZE(machines); m++)
		for (g = 0; g < ARRAY_SIZE(guest_counts); g++)
			for (pairs = 1; pairs <= 16; pairs += guest_counts[g] > 24 ? 5 : 1)
				for (policy = 0; policy < PLACEMENT_POLICY_COUNT; policy++)
					for (bound = 0; bound < 2; bound++) {
						struct world *w = &world;

						context = (struct context){ machines[m].name, guest_counts[g], pairs, placement_policy_names[policy], bound };
						machines[m].make();
						w->in.policy = policy;
						w->in.workers_per_port = 3;
						for (port = 0; port < guest_counts[g]; port++)
							invent_guest(w, port, pairs, bound);
						check_lawful(w, compute(w));
						if (policy == PLACEMENT_PER_CPU)
							check_homes(w);
						else
							check_workers_of_ports(w, guest_counts[g], pairs);
						for (node = 0; policy == PLACEMENT_PER_CPU && !bound && node < (int)w->topology.node_count; node++)
							if (is_served(w, node))
								check_balance(w, guest_counts[g], node);
						check_small_changes(w, guest_counts[g], pairs);
					}
}

/* 256 ports of 16 pairs on 64 workers, all of it wrong. The time is for the reader: it must stay far under 50 ms. */
static void largest_plan(void **state)
{
	struct world *w = MACHINE(2, 16, 16, 16, 16);
	uint64_t seed = 42, start;
	unsigned i;

	for (i = 0; i < PAIRS_MAX; i++) {
		struct placement_pair *pair = add_settled(w, i / 16, (int)below(&seed, 64), below(&seed, 25));

		pair->index = (uint16_t)(i % 16);
		pair->ring_node = (int)below(&seed, 4);
		pair->standing_us = below(&seed, 20);
		for (unsigned k = 0; k < 4; k++)
			cpulist_add(&pair->vcpus, below(&seed, 64));
	}
	measure(w);
	start = now_ns();
	compute(w);
	print_message("largest plan, all moves: %.2f ms\n", (double)(now_ns() - start) / 1e6);
	check_lawful(w, compute(w));
	w->in.moves_max = 16;
	start = now_ns();
	compute(w);
	print_message("largest plan, 16 moves:  %.2f ms\n", (double)(now_ns() - start) / 1e6);
	for (i = 0; i < PAIRS_MAX; i++)
		w->pairs[i].worker_now = -1;
	start = now_ns();
	assert_int_equal(compute(w), PAIRS_MAX);
	print_message("largest plan, all new:   %.2f ms\n", (double)(now_ns() - start) / 1e6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_worlds),
		cmocka_unit_test(equal_loads_spread_evenly),
		cmocka_unit_test(product),
		cmocka_unit_test(largest_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
