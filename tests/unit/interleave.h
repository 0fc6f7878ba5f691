/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every interleaving of a few small programs on a machine with store buffers (x86-TSO): each thread's plain stores wait in a FIFO
 * of its own, and reach memory in that order but whenever they like; the thread itself sees its own stores at once, the others only what
 * has reached memory. A fence, a locked instruction or an effect inside the kernel (which takes a lock for it) waits until the thread's
 * FIFO is empty.
 *
 * A program is a function of state that carries out one step of one thread. explore() walks all states that can be reached and says
 *   BROKEN  a program found a rule violated (interleave_break());
 *   STUCK   there is a state from which no interleaving whatever leads to a settled one: somebody sleeps for ever though something is to be
 *           done, or runs in circles without ever doing it;
 *   HOLDS   neither.
 * Since programs may end at any of their turns (a choice), "a later event happens to help" does not hide a lost wake-up.
 */
#ifndef VHOSTLANE_TESTS_INTERLEAVE_H
#define VHOSTLANE_TESTS_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 4
#define MEMORY_MAX 20
#define REGISTERS_MAX 6
#define BUFFER_MAX 6
#define CHOICES_MAX 3
#define STATES_MAX 4000000u /* a model that grows beyond is written wrongly */

struct thread {
	uint8_t pc;
	uint8_t r[REGISTERS_MAX];
	uint8_t stored; /* entries of the FIFO; the unused ones are 0, so that equal states are equal bytes */
	uint8_t at[BUFFER_MAX], value[BUFFER_MAX];
};

struct state {
	uint8_t memory[MEMORY_MAX];
	struct thread t[THREADS_MAX];
	uint8_t is_broken;
	uint8_t unused[3];
};
_Static_assert(sizeof(struct state) % sizeof(uint64_t) == 0, "hashed word by word, without padding");

struct program_set {
	unsigned threads;
	/* One step of @thread; @choice says which, where there are several. Return: false if it cannot run now or there is no such choice;
	 * *s may be anything then. */
	bool (*step)(const void *context, struct state *s, unsigned thread, unsigned choice);
	bool (*settled)(const void *context, const struct state *s);
	const char *(*label)(const void *context, unsigned thread, unsigned pc);
	const void *context;
};

enum verdict { HOLDS, BROKEN, STUCK };

struct result {
	enum verdict verdict;
	unsigned states;
	unsigned steps; /* of the counterexample */
};

/* --- what programs use ---------------------------------------------------------------------------------------------- */

static inline uint8_t load(const struct state *s, unsigned thread, unsigned at)
{
	const struct thread *t = &s->t[thread];

	for (unsigned i = t->stored; i-- > 0;)
		if (t->at[i] == at)
			return t->value[i];
	return s->memory[at];
}

/* Return: false if the FIFO is full: the thread waits until something has left it. */
static inline bool store(struct state *s, unsigned thread, unsigned at, uint8_t value)
{
	struct thread *t = &s->t[thread];

	if (t->stored == BUFFER_MAX)
		return false;
	t->at[t->stored] = (uint8_t)at;
	t->value[t->stored++] = value;
	return true;
}

/* What a fence, a locked instruction or the kernel waits for. */
static inline bool drained(const struct state *s, unsigned thread)
{
	return s->t[thread].stored == 0;
}

static inline bool go(struct state *s, unsigned thread, unsigned pc)
{
	s->t[thread].pc = (uint8_t)pc;
	return true;
}

static inline bool interleave_break(struct state *s)
{
	s->is_broken = 1;
	return true;
}

/* --- the walk ------------------------------------------------------------------------------------------------------- */

struct walk {
	struct state *states;
	uint32_t *parent; /* from where it was reached first */
	uint32_t count, room;
	uint32_t *slots; /* hash table of state numbers + 1 */
	uint32_t slot_mask;
	uint32_t *edges; /* from, to, from, to, ... */
	size_t edge_count, edge_room;
};

static inline uint64_t hash_state(const struct state *s)
{
	uint64_t h = 0, word;

	for (size_t at = 0; at < sizeof(*s); at += sizeof(word)) {
		memcpy(&word, (const uint8_t *)s + at, sizeof(word));
		h = (h ^ word) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 32;
	}
	return h;
}

static inline void *grow(void *memory, size_t size)
{
	memory = realloc(memory, size);
	if (!memory) {
		fputs("interleave: out of memory\n", stderr);
		abort();
	}
	return memory;
}

static inline void rehash(struct walk *w, uint32_t slot_count)
{
	free(w->slots);
	w->slots = calloc(slot_count, sizeof(*w->slots));
	if (!w->slots)
		abort();
	w->slot_mask = slot_count - 1;
	for (uint32_t i = 0; i < w->count; i++) {
		uint32_t slot = (uint32_t)hash_state(&w->states[i]) & w->slot_mask;

		while (w->slots[slot])
			slot = (slot + 1) & w->slot_mask;
		w->slots[slot] = i + 1;
	}
}

/* Number of a state, known or new. */
static inline uint32_t number_of_state(struct walk *w, const struct state *s, uint32_t parent)
{
	uint32_t slot = (uint32_t)hash_state(s) & w->slot_mask;

	for (; w->slots[slot]; slot = (slot + 1) & w->slot_mask)
		if (!memcmp(&w->states[w->slots[slot] - 1], s, sizeof(*s)))
			return w->slots[slot] - 1;
	if (w->count == STATES_MAX) {
		fputs("interleave: too many states\n", stderr);
		abort();
	}
	if (w->count == w->room) {
		w->room = w->room ? 2 * w->room : 1024;
		w->states = grow(w->states, w->room * sizeof(*w->states));
		w->parent = grow(w->parent, w->room * sizeof(*w->parent));
	}
	w->states[w->count] = *s;
	w->parent[w->count] = parent;
	w->slots[slot] = ++w->count;
	if (w->count > w->slot_mask / 2)
		rehash(w, 2 * (w->slot_mask + 1));
	return w->count - 1;
}

static inline void add_edge(struct walk *w, uint32_t from, const struct state *to)
{
	const uint32_t number = number_of_state(w, to, from);

	if (w->edge_count + 2 > w->edge_room) {
		w->edge_room = w->edge_room ? 2 * w->edge_room : 8192;
		w->edges = grow(w->edges, w->edge_room * sizeof(*w->edges));
	}
	w->edges[w->edge_count++] = from;
	w->edges[w->edge_count++] = number;
}

/* The oldest waiting store reaches memory. */
static inline void drain_one(struct state *s, unsigned thread)
{
	struct thread *t = &s->t[thread];

	s->memory[t->at[0]] = t->value[0];
	t->stored--;
	memmove(t->at, t->at + 1, BUFFER_MAX - 1);
	memmove(t->value, t->value + 1, BUFFER_MAX - 1);
	t->at[BUFFER_MAX - 1] = t->value[BUFFER_MAX - 1] = 0;
}

static inline void follow(struct walk *w, const struct program_set *p, uint32_t from)
{
	for (unsigned thread = 0; thread < p->threads; thread++) {
		struct state next = w->states[from];

		if (next.t[thread].stored) {
			drain_one(&next, thread);
			add_edge(w, from, &next);
		}
		for (unsigned choice = 0; choice < CHOICES_MAX; choice++) {
			next = w->states[from];
			if (p->step(p->context, &next, thread, choice))
				add_edge(w, from, &next);
		}
	}
}

/* First state from which no settled one can be reached; count if there is none. */
static inline uint32_t find_stuck(const struct walk *w, const struct program_set *p)
{
	const size_t edges = w->edge_count / 2;
	uint32_t *first = calloc(w->count + 2, sizeof(*first)), *from = calloc(edges + 1, sizeof(*from));
	uint32_t *queue = calloc(w->count + 1, sizeof(*queue)), head = 0, tail = 0, stuck = 0;
	bool *reaches = calloc(w->count + 1, sizeof(*reaches));

	if (!first || !from || !queue || !reaches)
		abort();
	/* Edges by their target. */
	for (size_t e = 0; e < edges; e++)
		first[w->edges[2 * e + 1] + 2]++;
	for (uint32_t i = 2; i < w->count + 2; i++)
		first[i] += first[i - 1];
	for (size_t e = 0; e < edges; e++)
		from[first[w->edges[2 * e + 1] + 1]++] = w->edges[2 * e];
	for (uint32_t i = 0; i < w->count; i++)
		if (p->settled(p->context, &w->states[i])) {
			reaches[i] = true;
			queue[tail++] = i;
		}
	while (head < tail) {
		const uint32_t to = queue[head++];

		for (uint32_t e = first[to]; e < first[to + 1]; e++)
			if (!reaches[from[e]]) {
				reaches[from[e]] = true;
				queue[tail++] = from[e];
			}
	}
	while (stuck < w->count && reaches[stuck])
		stuck++;
	free(first);
	free(from);
	free(queue);
	free(reaches);
	return stuck;
}

/* The way to state @last. Return: its steps. */
static inline unsigned tell(const struct walk *w, const struct program_set *p, uint32_t last, bool aloud)
{
	unsigned steps = 0;
	uint32_t *way;

	for (uint32_t i = last; i; i = w->parent[i])
		steps++;
	way = calloc(steps + 1, sizeof(*way));
	if (!way)
		abort();
	for (uint32_t i = last, k = steps; k > 0; i = w->parent[i])
		way[--k] = i;
	for (unsigned k = 0; aloud && k < steps; k++) {
		const struct state *now = &w->states[way[k]], *before = &w->states[w->parent[way[k]]];

		for (unsigned t = 0; t < p->threads; t++)
			if (now->t[t].pc != before->t[t].pc)
				fprintf(stderr, "  thread %u: %s\n", t, p->label(p->context, t, before->t[t].pc));
			else if (now->t[t].stored < before->t[t].stored)
				fprintf(stderr, "  thread %u: (its store of %u at %u reaches memory)\n", t, before->t[t].value[0], before->t[t].at[0]);
	}
	free(way);
	return steps;
}

static inline void free_walk(struct walk *w)
{
	free(w->states);
	free(w->parent);
	free(w->slots);
	free(w->edges);
}

/* @aloud: tells the way to a state that breaks a rule or is stuck. */
static inline struct result explore(const struct program_set *p, const struct state *start, bool aloud)
{
	struct result result = { .verdict = HOLDS };
	struct walk w = { 0 };
	uint32_t bad;

	rehash(&w, 4096);
	number_of_state(&w, start, 0);
	for (uint32_t i = 0; i < w.count && result.verdict == HOLDS; i++) {
		if (w.states[i].is_broken) {
			result.verdict = BROKEN;
			result.steps = tell(&w, p, i, aloud);
		} else {
			follow(&w, p, i);
		}
	}
	bad = result.verdict == HOLDS ? find_stuck(&w, p) : w.count;
	if (bad < w.count) {
		result.verdict = STUCK;
		result.steps = tell(&w, p, bad, aloud);
	}
	result.states = w.count;
	free_walk(&w);
	return result;
}

#endif
