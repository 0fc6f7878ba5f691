/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a worker does without work (design section 6). See worker.c, theory of operation: the window, arming, the last look, sleep.
 */
#include <sys/epoll.h>
#include <sys/resource.h>

#include "datapath/grace.h"
#include "datapath/worker_private.h"

/* Whether the scheduler took the CPU away since the last question, although the thread wanted to go on. */
static bool was_preempted(struct worker *w)
{
	struct rusage usage;
	bool preempted;

	if (getrusage(RUSAGE_THREAD, &usage))
		return false;
	preempted = usage.ru_nivcsw != w->preemptions;
	w->preemptions = usage.ru_nivcsw;
	return preempted;
}

/*
 * Polling that others had to interrupt takes from them what they need (S2: leave at once when the scheduler wants the CPU). It is given up
 * for a while, twice as long each time. Polling that catches something unhindered shortens the next while. A task of the idle class
 * interrupts so rarely that this changes nothing.
 */
static void note_polling_round(struct worker *w, uint64_t now, uint64_t round_ns)
{
	if (likely(round_ns < SUSPICIOUS_NS) || !was_preempted(w))
		return;
	worker_count(w, WORKER_POLLS_PREEMPTED, 1);
	if (w->window_bound_ns == UINT64_MAX) /* `always`: the operator gave the CPU to it; only patience ends that */
		return;
	w->pause_ns = min_u64(max_u64(2 * w->pause_ns, PAUSE_SHORTEST_NS), PAUSE_LONGEST_NS);
	w->pause_until_ns = now + w->pause_ns;
}

static void note_caught(struct worker *w)
{
	w->pause_ns -= w->pause_ns / 8;
	if (w->pause_ns < PAUSE_SHORTEST_NS / 2)
		w->pause_ns = 0;
}

/* The longest window of the share's pairs: an upper bound. */
static uint64_t busy_poll_bound_ns(struct worker *w)
{
	const struct plan_share *share = &w->plan->shares[w->index];
	bool adaptive = false, always = false;
	uint32_t longest = 0;

	for (uint32_t i = 0; i < share->pair_count; i++) {
		const uint32_t us = atomic_load_explicit(&share->pairs[i]->busy_poll_us, memory_order_relaxed);

		longest = max_u32(longest, us == BUSY_POLL_ADAPTIVE ? BUSY_POLL_ADAPTIVE_US : us);
		adaptive |= us == BUSY_POLL_ADAPTIVE;
		always |= us == BUSY_POLL_ALWAYS;
	}
	w->adaptive = adaptive && !always;
	return longest == BUSY_POLL_ALWAYS ? UINT64_MAX : (uint64_t)longest * 1000;
}

void worker_adopt_bound(struct worker *w)
{
	w->window_bound_ns = busy_poll_bound_ns(w);
	w->window_ns = w->window_bound_ns;
}

/* A rest ended after @rest_ns, caught by polling or by a wake-up. */
static void adapt_window(struct worker *w, uint64_t rest_ns)
{
	if (w->window_bound_ns == UINT64_MAX)
		w->window_ns = UINT64_MAX;
	else if (rest_ns > w->window_bound_ns)
		w->window_ns /= 2;
	else if (w->window_ns < 2 * rest_ns || w->window_ns < WINDOW_FIRST_NS)
		w->window_ns = 2 * rest_ns > WINDOW_FIRST_NS ? 2 * rest_ns : WINDOW_FIRST_NS;
	if (w->window_ns > w->window_bound_ns)
		w->window_ns = w->window_bound_ns;
}

static uint64_t patient_window_ns(const struct worker *w)
{
	const uint32_t patience = atomic_load_explicit(&w->patience, memory_order_relaxed);

	if (w->adaptive)
		return poll_trial_polls(&w->trial) ? w->window_ns : 0;
	
	return patience == WORKER_PATIENCE_FULL ? w->window_ns : w->window_ns / WORKER_PATIENCE_FULL * patience;
}

/* Arms everything and looks once more. @timeout_ns: how long it may sleep. Return: false if there is work, or news from control. */
static bool may_sleep(struct worker *w, uint64_t *timeout_ns)
{
	const struct plan_share *share = &w->plan->shares[w->index];

	*timeout_ns = UINT64_MAX;
	for (uint32_t i = 0; i < share->pair_count; i++) {
		struct queue_pair *pair = share->pairs[i];

		if (pair->from_guest_kick_fd < 0 || atomic_load_explicit(&pair->unwatched, memory_order_relaxed))
			*timeout_ns = min_u64(*timeout_ns, POLLED_SLEEP_NS);
		*timeout_ns = min_u64(*timeout_ns, worker_call_in_ns(w, pair));
		if (ring_arm(&pair->from_guest))
			return false;
	}
	for (unsigned d = 0; d < w->device_count; d++) {
		struct device_end *end = &w->devices[d];

		lane_settle(end->port);
		if (end->port->tx_pending)
			*timeout_ns = min_u64(*timeout_ns, POLLED_SLEEP_NS);
		/* A driver checks its rings before it asks to be woken: the wish may come after our look. */
		else if (lane_device_mode(end->of.device) == LANE_MODE_ZERO_COPY)
			*timeout_ns = min_u64(*timeout_ns, ZERO_COPY_SLEEP_NS);
		for (unsigned q = 0; q < lane_device_queues(end->of.device); q++)
			if (lane_pending(lane_of(end->of.device, q, w->index)))
				return false;
	}
	return atomic_load(w->published) == w->plan && !atomic_load(&w->stopping) && !atomic_load(&w->hold_lanes) &&
	       atomic_load(&w->drain_wanted) == atomic_load(&w->sent_seen);
}

static void count_wakes(struct worker *w, const struct epoll_event *events, int event_count)
{
	static const enum worker_counter counter_of[] = {
		[WATCHED_CONTROL] = WORKER_WAKE_CONTROL,
		[WATCHED_LANE] = WORKER_WAKE_LANE,
		[WATCHED_KICK] = WORKER_WAKE_KICK,
	};

	for (int i = 0; i < event_count; i++)
		worker_count(w, counter_of[events[i].data.u32], 1);
}

static void sleep_until_called(struct worker *w, uint64_t timeout_ns)
{
	const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
	struct epoll_event events[16];
	const uint64_t start = now_ns();
	int event_count;

	w->plan = NULL;
	atomic_store(&w->asleep, true);
	grace_offline();
	event_count = epoll_pwait2(w->epoll_fd, events, ARRAY_SIZE(events), timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
	grace_online();
	atomic_store(&w->asleep, false);
	w->slept = true;
	worker_count(w, WORKER_SLEEPS, 1);
	count_wakes(w, events, event_count);
	w->round_start_ns = now_ns();
	worker_count(w, WORKER_NS_ASLEEP, w->round_start_ns - start);
}

static bool is_paused(const struct worker *w)
{
	return w->round_start_ns < w->pause_until_ns && !(w->adaptive && poll_trial_pays(&w->trial));
}

void worker_rest(struct worker *w)
{
	uint64_t timeout_ns;

	if (w->round_start_ns - w->last_work_ns < patient_window_ns(w) && !is_paused(w))
		cpu_pause();
	else if (may_sleep(w, &timeout_ns))
		sleep_until_called(w, timeout_ns);
}

/* Control spreads pairs that keep each other waiting, if another worker has nothing to do. */
static void report_standing(struct worker *w, uint64_t round_ns)
{
	if (round_ns > atomic_load_explicit(&w->standing_ns, memory_order_relaxed))
		atomic_store_explicit(&w->standing_ns, round_ns, memory_order_relaxed);
	if (w->round_start_ns - w->standing_told_ns > STANDING_TELL_NS) {
		w->standing_told_ns = w->round_start_ns;
		worker_tell_control(w);
	}
}

void worker_account_round(struct worker *w, bool worked)
{
	const uint64_t now = now_ns(), round_ns = now - w->round_start_ns;

	worker_count(w, WORKER_ROUNDS, 1);
	worker_count(w, worked ? WORKER_NS_BUSY : WORKER_NS_POLLING, round_ns);
	if (!worked)
		note_polling_round(w, now, round_ns);
	if (worked) {
		const uint64_t rest_ns = w->round_start_ns - w->last_work_ns;

		if (rest_ns)
			adapt_window(w, rest_ns);
		if (rest_ns && w->pause_ns && !w->slept)
			note_caught(w);
		w->slept = false;
		w->last_work_ns = now;
		if (unlikely(round_ns > STANDING_NS && w->busy_pairs > 1))
			report_standing(w, round_ns);
	}
	w->round_start_ns = now;
	if (w->adaptive && now - w->trial.start_ns >= POLL_TRIAL_NS)
		poll_trial_end(&w->trial, now, w->counters[WORKER_FRAMES_FROM_RINGS] + w->counters[WORKER_FRAMES_FROM_LANES]);
}
