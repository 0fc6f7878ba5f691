/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A worker's life, as control leads it: memory and descriptors, its thread and the CPU that it runs on, its end, and what control tells and
 * asks it meanwhile. Control thread, but for worker_main().
 */
#include "datapath/worker.h"

#include <errno.h>
#include <numa.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log.h"
#include "datapath/grace.h"
#include "datapath/worker_private.h"

/* --- its thread ---------------------------------------------------------------------------------------------------- */

static int set_affinity(pid_t tid, const struct cpulist *cpus)
{
	/* struct cpulist has the kernel's own layout: one bit a CPU, lowest first. */
	return sched_setaffinity(tid, sizeof(cpus->bits), (const cpu_set_t *)cpus->bits) < 0 ? -errno : 0;
}

static int pin(pid_t tid, int cpu)
{
	struct cpulist one = {0};

	if (cpu < 0)
		return 0;
	if (cpu >= CPUS_MAX)
		return -EINVAL;
	cpulist_add(&one, (unsigned)cpu);
	return set_affinity(tid, &one);
}

static void *worker_main(void *argument)
{
	struct worker *w = argument;
	char name[16];
	int result;

	snprintf(name, sizeof(name), "vhostlane-w%u", w->index);
	pthread_setname_np(pthread_self(), name);
	atomic_store(&w->tid, (int)syscall(SYS_gettid));
	result = pin(0, atomic_load(&w->cpu));
	atomic_store(&w->start_error, result);
	if (result)
		return NULL;
	urcu_qsbr_register_thread();
	worker_serve(w);
	urcu_qsbr_unregister_thread();
	return NULL;
}

static void ignore_signal(int signal)
{
}

/* --- its descriptors ----------------------------------------------------------------------------------------------- */

static int watch(struct worker *w, int fd, enum watched what)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = what};

	return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int worker_watch_kick(struct worker *w, int kick_fd)
{
	return watch(w, kick_fd, WATCHED_KICK);
}

void worker_unwatch_kick(struct worker *w, int kick_fd)
{
	epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, kick_fd, NULL);
}

static int open_device(struct worker *w, const struct worker_device *of, struct error *error)
{
	struct device_end *end = &w->devices[w->device_count];

	end->of = *of;
	end->port = lane_port_create(of->device, w->index, error);
	if (!end->port)
		return error->code;
	w->device_count++;
	if (of->is_uplink)
		w->uplink[of->domain] = end;
	else if (!w->host_link[of->domain] || of->node == atomic_load(&w->node))
		w->host_link[of->domain] = end;
	for (unsigned q = 0; q < lane_device_queues(of->device); q++) {
		int result = watch(w, lane_fd(lane_of(of->device, q, w->index)), WATCHED_LANE);

		if (result)
			return error_set(error, result, "worker %u: cannot watch a lane of %s: %s; raise the limit of open files (ulimit -n)",
					 w->index, lane_device_name(of->device), strerror(-result));
	}
	return 0;
}

static int open_descriptors(struct worker *w, struct error *error)
{
	int result;

	w->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (w->wake_fd < 0 || w->epoll_fd < 0)
		return error_set(error, -errno, "worker %u: no descriptor: %s; raise the limit of open files (ulimit -n)", w->index,
				 strerror(errno));
	result = watch(w, w->wake_fd, WATCHED_CONTROL);
	if (result)
		return error_set(error, result, "worker %u: epoll: %s; raise the limit of open files (ulimit -n)", w->index, strerror(-result));
	return 0;
}

/* --- start and end ------------------------------------------------------------------------------------------------- */

static void free_worker(struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		lane_port_destroy(w->devices[d].port);
	if (w->wake_fd >= 0)
		close(w->wake_fd);
	if (w->epoll_fd >= 0)
		close(w->epoll_fd);
	numa_free(w, sizeof(*w));
}

/* A worker's memory lies on its own node. */
static struct worker *allocate_worker(int node)
{
	struct worker *w = node >= 0 && numa_available() >= 0 ? numa_alloc_onnode(sizeof(*w), node) : numa_alloc_local(sizeof(*w));

	if (w)
		memset(w, 0, sizeof(*w));
	return w;
}

static int start_thread(struct worker *w, struct error *error)
{
	const struct sigaction action = {.sa_handler = ignore_signal};
	sigset_t all, before;
	int result;

	sigaction(UNSTICK_SIGNAL, &action, NULL);
	sigfillset(&all);
	sigdelset(&all, UNSTICK_SIGNAL);
	sigdelset(&all, SIGBUS); /* guest_memory.h: a short memory file is handled in the thread that touches it */
	sigdelset(&all, SIGSEGV);
	atomic_store(&w->start_error, 1);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = -pthread_create(&w->thread, NULL, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result)
		return error_set(error, result, "worker %u: cannot start a thread: %s; raise the limit of tasks", w->index, strerror(-result));
	while ((result = atomic_load(&w->start_error)) == 1)
		usleep(100);
	if (result) {
		pthread_join(w->thread, NULL);
		return error_set(error, result, "worker %u: cannot run on CPU %d: %s; give --cpus CPUs that are online and allowed", w->index,
				 atomic_load(&w->cpu), strerror(-result));
	}
	return 0;
}

struct worker *worker_start(const struct worker_setup *setup, struct error *error)
{
	struct worker *w = allocate_worker(setup->node);

	if (!w) {
		error_set(error, -ENOMEM, "worker %u: out of memory; free some memory", setup->index);
		return NULL;
	}
	w->index = setup->index;
	w->published = setup->plan;
	w->control_fd = setup->control_fd;
	w->wake_fd = w->epoll_fd = -1;
	atomic_store(&w->cpu, setup->cpu);
	atomic_store(&w->node, setup->node);
	atomic_store(&w->patience, WORKER_PATIENCE_FULL);
	w->generation = UINT64_MAX;
	w->output = worker_output;
	w->output.context = w;
	ck_ring_init(&w->learn_ring, LEARN_RING);
	if (open_descriptors(w, error))
		goto fail;
	for (unsigned d = 0; d < setup->device_count; d++)
		if (open_device(w, &setup->devices[d], error))
			goto fail;
	if (start_thread(w, error))
		goto fail;
	return w;
fail:
	free_worker(w);
	return NULL;
}

/* One that is stuck in a guest's call descriptor is interrupted until it comes. */
static void join(struct worker *w)
{
	struct timespec until;

	do {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += JOIN_STEP_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
		if (!pthread_timedjoin_np(w->thread, NULL, &until))
			return;
	} while (!pthread_kill(w->thread, UNSTICK_SIGNAL));
	pthread_join(w->thread, NULL);
}

void worker_stop(struct worker *w)
{
	if (!w)
		return;
	atomic_store(&w->stopping, true);
	worker_wake(w);
	join(w);
	free_worker(w);
}

/* --- told and asked meanwhile -------------------------------------------------------------------------------------- */

void worker_wake(struct worker *w)
{
	const uint64_t one = 1;

	if (write(w->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_limited(LOG_LEVEL_ERROR, "worker %u: cannot wake it: %s", w->index, strerror(errno));
}

void worker_hold_lanes(struct worker *w, bool hold)
{
	atomic_store(&w->hold_lanes, hold);
	worker_wake(w);
}

void worker_drain_request(struct worker *w)
{
	atomic_fetch_add(&w->drain_wanted, 1);
	worker_wake(w);
}

bool worker_drained(const struct worker *w)
{
	return atomic_load(&w->drain_seen) == atomic_load(&w->drain_wanted);
}

bool worker_sent(const struct worker *w)
{
	return atomic_load(&w->sent_seen) == atomic_load(&w->drain_wanted);
}

int worker_cpu(const struct worker *w)
{
	return atomic_load(&w->cpu);
}

int worker_node(const struct worker *w)
{
	return atomic_load(&w->node);
}

int worker_move(struct worker *w, int cpu, int node, struct error *error)
{
	const int result = cpu < 0 ? -EINVAL : pin(atomic_load(&w->tid), cpu);

	if (result)
		return error_set(error, result, "worker %u: cannot run on CPU %d: %s; name a CPU that is online and allowed", w->index, cpu,
				 strerror(-result));
	atomic_store(&w->cpu, cpu);
	atomic_store(&w->node, node);
	return 0;
}

int worker_unpin(struct worker *w, const struct cpulist *cpus, struct error *error)
{
	const int result = set_affinity(atomic_load(&w->tid), cpus);

	if (result)
		return error_set(error, result, "worker %u: cannot be let go of its CPU: %s; name CPUs that are online and allowed", w->index,
				 strerror(-result));
	atomic_store(&w->cpu, -1);
	return 0;
}

int worker_tid(const struct worker *w)
{
	return atomic_load(&w->tid);
}

bool worker_asleep(const struct worker *w)
{
	return atomic_load(&w->asleep);
}

uint64_t worker_counter(const struct worker *w, enum worker_counter which)
{
	return __atomic_load_n(&w->counters[which], __ATOMIC_RELAXED);
}

void worker_set_patience(struct worker *w, uint32_t patience)
{
	const uint32_t before = atomic_exchange(&w->patience, patience);

	/* Without any, even one that always polls fell asleep, and would sleep on until somebody has work for it. */
	if (!before && patience)
		worker_wake(w);
}

uint32_t worker_patience(const struct worker *w)
{
	return atomic_load_explicit(&w->patience, memory_order_relaxed);
}

uint64_t worker_take_standing_ns(struct worker *w)
{
	return atomic_exchange(&w->standing_ns, 0);
}

struct lane_port *worker_lane_port(const struct worker *w, unsigned device)
{
	return w->devices[device].port;
}

bool worker_take_learn(struct worker *w, struct learn_request *request)
{
	return CK_RING_DEQUEUE_SPSC(learn, &w->learn_ring, w->learn_buffer, request);
}

bool worker_watchdog(struct worker *w)
{
	const uint64_t rounds = worker_counter(w, WORKER_ROUNDS);
	const bool asleep = atomic_load(&w->asleep);

	if (rounds == w->watchdog_rounds && !asleep)
		pthread_kill(w->thread, UNSTICK_SIGNAL);
	w->watchdog_rounds = rounds;
	return !asleep;
}
