/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * confined COMMAND [ARGUMENT...]: runs a command as a container does that hides the guests from it: in a PID namespace of its own, and with
 * move_pages() refused, as by Docker's seccomp profile without CAP_SYS_NICE. Passes SIGTERM on; ends as the command ends.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child;

static void die(const char *what)
{
	fprintf(stderr, "confined: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void pass_on(int signal)
{
	if (child > 0)
		kill(child, signal);
}

static void refuse_move_pages(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_move_pages, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) /* as root, no_new_privs is not needed */
		die("seccomp");
}

int main(int argc, char **argv)
{
	int status;

	if (argc < 2) {
		fprintf(stderr, "confined: no command; name one\n");
		return 2;
	}
	signal(SIGTERM, pass_on);
	if (unshare(CLONE_NEWPID))
		die("a PID namespace");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGTERM, SIG_DFL);
		refuse_move_pages();
		execvp(argv[1], argv + 1);
		die(argv[1]);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			die("wait");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
