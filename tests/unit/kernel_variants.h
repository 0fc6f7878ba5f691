/* SPDX-License-Identifier: BSD-2-Clause */
/* The kinds of CPU that checksum_kernels.h has code for. To be included behind what includes that. */
#ifndef TESTS_UNIT_KERNEL_VARIANTS_H
#define TESTS_UNIT_KERNEL_VARIANTS_H

/* Can this CPU run what is written for a kind of CPU? If not, it says so. */
static inline bool variant_runs(const char *name)
{
	bool runs = true;

#ifdef __x86_64__
	if (strcmp(name, "avx2") == 0)
		runs = has_avx2();
	else if (strcmp(name, "vnni") == 0)
		runs = can_run_vnni();
#endif
	if (!runs)
		print_message("variant %s is not tested: this CPU has no such instructions\n", name);
	return runs;
}

#endif
