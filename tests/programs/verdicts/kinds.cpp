/*
 * Blocks that are held, and blocks that are lost, of as many kinds as possible: kinds that tools which look for
 * pointers can distinguish, and kinds that they cannot. Each is allocated below a function with the kind's name.
 *
 * usage: kinds [attached] [exit] [shown] [BLOCKS]
 *
 * `attached` waits for a line before the first of them. `shown` leaves out kinds that make others unknown, as the
 * kernel holds pointers that it does not show. Then there is a line for each kind, `NAME BLOCKS TRUTH`, with two more
 * numbers for lost ones: blocks that are definitely, and indirectly lost. After `ready` everything stays as it is until
 * a line comes, or with `exit` until LeakSanitizer and memcheck, if this runs with one of them, have looked at it.
 *
 * To be built with `unloaded.so`, of unloaded.c, in the same directory.
 */
#include "held.h"
#include "held_cxx.h"
#include "held_threads.h"
#include "hidden.h"
#include "lost.h"
#include "../handshake.h"

extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();

/* As in a program with a stripped allocator: that says nothing about the memory of others. */
__attribute__((used)) static const char message[] = "mimalloc: warning: ";

struct Kind {
	const char *name;
	Truth truth;
	Count (*set_up)();
};

/* In this order: kinds that leave stale pointers come last, so that nothing overwrites these. */
static const Kind kinds[] = {
	{"held_by_data", Truth::held, set_up_data},
	{"held_by_bss", Truth::held, set_up_bss},
	{"held_by_relro", Truth::held, set_up_relro},
	{"held_by_static_local", Truth::held, set_up_static_local},
	{"held_by_list", Truth::held, set_up_list},
	{"held_by_double_list", Truth::held, set_up_double_list},
	{"held_by_ring", Truth::held, set_up_ring},
	{"held_by_tree", Truth::held, set_up_tree},
	{"held_by_pointer_array", Truth::held, set_up_pointer_array},
	{"held_by_middle", Truth::held, set_up_middle},
	{"held_by_second_word", Truth::held, set_up_second_word},
	{"held_by_last_byte", Truth::held, set_up_last_byte},
	{"held_by_end", Truth::held, set_up_end},
	{"held_by_low_tag", Truth::held, set_up_low_tag},
	{"held_by_length_prefixed", Truth::held, set_up_length_prefixed},
	{"held_by_string_rep", Truth::held, set_up_string_rep},
	{"held_by_array_cookie", Truth::held, set_up_array_cookie},
	{"held_by_second_base", Truth::held, set_up_second_base},
	{"held_by_std_string", Truth::held, set_up_std_string},
	{"held_by_std_vector", Truth::held, set_up_std_vector},
	{"held_by_std_deque", Truth::held, set_up_std_deque},
	{"held_by_std_list", Truth::held, set_up_std_list},
	{"held_by_std_map", Truth::held, set_up_std_map},
	{"held_by_std_unordered_map", Truth::held, set_up_std_unordered_map},
	{"held_by_shared_ptr", Truth::held, set_up_shared_ptr},
	{"held_by_unique_ptr", Truth::held, set_up_unique_ptr},
	{"held_by_std_function", Truth::held, set_up_std_function},
	{"held_by_tls", Truth::held, set_up_tls},
	{"held_by_tls_of_thread", Truth::held, set_up_tls_of_thread},
	{"held_by_specific", Truth::held, set_up_specific},
	{"held_by_main_stack", Truth::held, set_up_main_stack},
	{"held_by_stack_in_futex", Truth::held, set_up_stack_in_futex},
	{"held_by_stack_in_sleep", Truth::held, set_up_stack_in_sleep},
	{"held_by_stack_in_epoll_wait", Truth::held, set_up_stack_in_epoll_wait},
	{"held_by_coroutine_on_block", Truth::held, set_up_coroutine_on_block},
	{"held_by_coroutine_on_mapping", Truth::held, set_up_coroutine_on_mapping},
	{"held_by_signal_stack", Truth::held, set_up_signal_stack},
#ifdef __x86_64__
	{"held_by_register_in_futex", Truth::held, set_up_register_in_futex},
	{"held_by_running_stack", Truth::held, set_up_running_stack},
	{"held_by_running_register", Truth::held, set_up_running_register},
#endif
	{"held_in_own_mapping", Truth::held, set_up_own_mapping},
	{"held_by_private_page", Truth::held, set_up_private_page},
	{"held_by_shared_page", Truth::held, set_up_shared_page},
	{"held_by_memfd_page", Truth::held, set_up_memfd_page},
	{"held_by_shared_file", Truth::held, set_up_shared_file},
	{"held_by_private_file", Truth::held, set_up_private_file},
	{"held_by_read_only_page", Truth::held, set_up_read_only_page},
	{"held_by_no_access_page", Truth::held, set_up_no_access_page},
	{"held_by_brk", Truth::held, set_up_brk},
	{"held_by_sparse_mapping", Truth::held, set_up_sparse_mapping},
	{"kernel_epoll_data", Truth::kernel, set_up_epoll_data},
	{"kernel_timer", Truth::kernel, set_up_timer},
	{"kernel_timer_without_signal", Truth::kernel, set_up_timer_without_signal},
	{"kernel_pending_signal", Truth::kernel, set_up_pending_signal},
	{"kernel_signal_stack", Truth::kernel, set_up_kernel_signal_stack},
	{"kernel_pipe", Truth::kernel, set_up_pipe},
	{"kernel_socket", Truth::kernel, set_up_socket},
	{"kernel_file", Truth::kernel, set_up_file},
#ifdef __x86_64__
	{"hidden_in_vector_register", Truth::hidden, set_up_vector_register},
#endif
	{"hidden_by_high_tag", Truth::hidden, set_up_high_tag},
	{"hidden_by_short_tag", Truth::hidden, set_up_short_tag},
	{"hidden_in_xor_list", Truth::hidden, set_up_xor_list},
	{"hidden_by_compression", Truth::hidden, set_up_compression},
	{"hidden_by_self_relation", Truth::hidden, set_up_self_relation},
	{"hidden_by_base64", Truth::hidden, set_up_base64},
	{"hidden_by_secret", Truth::hidden, set_up_secret},
	{"hidden_by_swapped_bytes", Truth::hidden, set_up_swapped_bytes},
	{"hidden_by_swapped_halves", Truth::hidden, set_up_swapped_halves},
	{"hidden_in_two_parts", Truth::hidden, set_up_two_parts},
	{"hidden_at_odd_address", Truth::hidden, set_up_odd_address},
	{"hidden_at_half_word", Truth::hidden, set_up_half_word},
	{"lost_plainly", Truth::lost, set_up_plainly},
	{"lost_with_interior_pointers", Truth::lost, set_up_interior_pointers},
	{"lost_list", Truth::lost, set_up_lost_list},
	{"lost_double_list", Truth::lost, set_up_lost_double_list},
	{"lost_ring", Truth::lost, set_up_lost_ring},
	{"lost_tree", Truth::lost, set_up_lost_tree},
	{"lost_table", Truth::lost, set_up_lost_table},
	{"lost_that_hold_others", Truth::lost, set_up_that_hold_others},
	{"lost_in_own_mapping", Truth::lost, set_up_lost_in_own_mapping},
	{"lost_by_references", Truth::lost, set_up_references},
	{"lost_by_exception", Truth::lost, set_up_exception},
	{"lost_with_mapping", Truth::lost, set_up_with_mapping},
	{"lost_with_library", Truth::lost, set_up_with_library},
	{"stale_in_vector", Truth::stale, set_up_stale_vector},
	{"stale_in_buffer", Truth::stale, set_up_stale_buffer},
	{"lost_below_stack_pointer", Truth::lost, set_up_below_stack_pointer},
	{"lost_by_realloc", Truth::lost, set_up_realloc},
	{"lost_with_thread", Truth::lost, set_up_with_thread},
	{"lost_with_cached_stack", Truth::lost, set_up_with_cached_stack},
	{"lost_stale_in_slack", Truth::lost, set_up_stale_in_slack},
	{"lost_stale_in_tcache", Truth::lost, set_up_stale_in_tcache},
	{"lost_stale_in_bin", Truth::lost, set_up_stale_in_bin},
	{"lost_stale_in_top", Truth::lost, set_up_stale_in_top},
	{"lost_stale_in_fastbin", Truth::lost, set_up_stale_in_fastbin},
};

/* More than all set-ups use of the first thread's stack, the loader and the unwinder included. */
constexpr size_t SCRUBBED_MAIN = 1 << 20;

NOINLINE static Count set_up(const Kind &kind)
{
	return kind.set_up();
}

static void print(const Kind &kind, Count count)
{
	static const char *const words[] = {"held", "hidden", "kernel", "lost", "stale"};
	const char *truth = words[static_cast<int>(kind.truth)];
	char line[120];

	if (kind.truth == Truth::lost)
		snprintf(line, sizeof(line), "%s %zu %s %zu %zu", kind.name, count.blocks, truth, count.definite,
				 count.blocks - count.definite);
	else
		snprintf(line, sizeof(line), "%s %zu %s", kind.name, count.blocks, truth);
	say(line);
}

/* Finds the library beside the program. */
static void find_library()
{
	static char path[4096 + sizeof("unloaded.so")];

	/* /proc/self/exe is the loader if one starts the program. */
	if (!realpath(program_invocation_name, path))
		fail(program_invocation_name);
	strcpy(strrchr(path, '/') + 1, "unloaded.so");
	library_path = path;
}

static bool makes_others_unknown(const Kind &kind)
{
	return strcmp(kind.name, "kernel_pipe") == 0 || strcmp(kind.name, "kernel_socket") == 0;
}

static void block_signals()
{
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGRTMIN + 2);
	pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

int main(int argc, char **argv)
{
	static Count counts[sizeof(kinds) / sizeof(*kinds)];
	void *volatile table[MOST] = {};
	bool ends = false, only_shown = false;
	size_t at = 0;

	for (int argument = 1; argument < argc; argument++) {
		if (strcmp(argv[argument], "attached") == 0)
			await_line();
		else if (strcmp(argv[argument], "exit") == 0)
			ends = true;
		else if (strcmp(argv[argument], "shown") == 0)
			only_shown = true;
		else
			wanted = strtoul(argv[argument], nullptr, 10);
	}
	if (wanted < 2 || wanted > MOST)
		return 2;
	sem_init(&settled, 0, 0);
	of_main = table;
	find_library();
	block_signals();
	for (const Kind &kind : kinds) {
		if (!only_shown || !makes_others_unknown(kind))
			counts[at] = set_up(kind);
		at++;
		scrub(SCRUBBED_MAIN);
	}
	at = 0;
	for (const Kind &kind : kinds) {
		if (!only_shown || !makes_others_unknown(kind))
			print(kind, counts[at]);
		at++;
	}
	say("ready");
	scrub(SCRUBBED_MAIN);
	if (ends) {
		if (__lsan_do_recoverable_leak_check)
			__lsan_do_recoverable_leak_check();
		VALGRIND_DO_LEAK_CHECK;
	} else {
		await_line();
	}
	/* Destroys nothing, and leaves all threads where they are. */
	_exit(table[0] == nullptr);
}
