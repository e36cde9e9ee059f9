/* Blocks that are held by threads: by stacks of all kinds, registers, and thread-local storage. */
#pragma once
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>
#include <ucontext.h>
#include "kinds.h"

KIND(held_by_tls)
static thread_local void *volatile of_thread[MOST];
static Count set_up_tls()
{
	fill(of_thread, wanted, held_by_tls);
	return each(wanted);
}

KIND(held_by_tls_of_thread)
static Count set_up_tls_of_thread()
{
	start_thread(
		[](void *) -> void * {
			fill(of_thread, wanted, held_by_tls_of_thread);
			settle();
			wait_by_futex();
			return nullptr;
		},
		nullptr);
	return each(wanted);
}

KIND(held_by_specific)
/* The first 32 keys have a place in the thread's descriptor, the others are in blocks of the C library. */
static Count set_up_specific()
{
	static size_t count;

	start_thread(
		[](void *) -> void * {
			pthread_key_t key;

			while (count < wanted && pthread_key_create(&key, nullptr) == 0) {
				pthread_setspecific(key, held_by_specific(SIZE));
				count++;
			}
			settle();
			wait_by_futex();
			return nullptr;
		},
		nullptr);
	return each(count);
}

/* A thread that has pointers on its stack and waits forever. */
struct Waiting {
	Allocate *allocate;
	void (*wait)();
};

static void *hold_on_stack(void *argument)
{
	void *volatile table[MOST] = {};
	Waiting waiting = *static_cast<Waiting *>(argument);

	fill(table, wanted, waiting.allocate);
	settle();
	waiting.wait();
	return table[0];
}

KIND(held_by_stack_in_futex)
static Count set_up_stack_in_futex()
{
	Waiting waiting = {held_by_stack_in_futex, wait_by_futex};

	start_thread(hold_on_stack, &waiting);
	return each(wanted);
}

KIND(held_by_stack_in_sleep)
static Count set_up_stack_in_sleep()
{
	Waiting waiting = {held_by_stack_in_sleep, [] {
						   for (;;)
							   sleep(1000);
					   }};

	start_thread(hold_on_stack, &waiting);
	return each(wanted);
}

KIND(held_by_stack_in_epoll_wait)
static Count set_up_stack_in_epoll_wait()
{
	Waiting waiting = {held_by_stack_in_epoll_wait, [] {
						   int queue = epoll_create1(EPOLL_CLOEXEC);
						   epoll_event event;

						   for (;;)
							   epoll_wait(queue, &event, 1, -1);
					   }};

	start_thread(hold_on_stack, &waiting);
	return each(wanted);
}

#ifdef __x86_64__
/* Pointers meant for registers. */
struct Registers {
	void *general[5];
	void *vector[4];
};

/* Moves pointers to registers that calls preserve, and leaves none in memory. */
#define TAKE_GENERAL                                                                                              \
	"mov (%%rdi), %%rbx; mov 8(%%rdi), %%r12; mov 16(%%rdi), %%r13; mov 24(%%rdi), %%r14; mov 32(%%rdi), %%r15;" \
	"movq $0, (%%rdi); movq $0, 8(%%rdi); movq $0, 16(%%rdi); movq $0, 24(%%rdi); movq $0, 32(%%rdi);"
/* Likewise, to vector registers. */
#define TAKE_VECTOR                                                                              \
	"movq 40(%%rdi), %%xmm12; movq 48(%%rdi), %%xmm13; movq 56(%%rdi), %%xmm14; movq 64(%%rdi), %%xmm15;" \
	"movq $0, 40(%%rdi); movq $0, 48(%%rdi); movq $0, 56(%%rdi); movq $0, 64(%%rdi);"
/* Waits on a futex, on a word that is 0, forever. */
#define WAIT_IN_KERNEL                                                                          \
	"1: mov $202, %%eax; mov %%rsp, %%rdi; sub $512, %%rdi; movl $0, (%%rdi); mov $128, %%esi;" \
	"xor %%edx, %%edx; xor %%r10d, %%r10d; xor %%r8d, %%r8d; xor %%r9d, %%r9d; syscall; jmp 1b"
/* Sets the word that rsi points to, which says that the thread is settled, and never leaves user mode again. */
#define SPIN "movl $1, (%%rsi); xor %%esi, %%esi; xor %%edi, %%edi; 1: pause; jmp 1b"

#define CHANGED "rbx", "r12", "r13", "r14", "r15", "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "memory"

KIND(held_by_register_in_futex)
static Count set_up_register_in_futex()
{
	start_thread(
		[](void *) -> void * {
			Registers registers = {};

			fill(registers.general, 5, held_by_register_in_futex);
			settle();
			asm volatile(TAKE_GENERAL WAIT_IN_KERNEL : : "D"(&registers) : "rsi", CHANGED);
			return nullptr;
		},
		nullptr);
	return each(5);
}

KIND(hidden_in_vector_register)
static Count set_up_vector_register()
{
	start_thread(
		[](void *) -> void * {
			Registers registers = {};

			fill(registers.vector, 4, hidden_in_vector_register);
			settle();
			asm volatile(TAKE_VECTOR WAIT_IN_KERNEL
						 :
						 : "D"(&registers)
						 : "xmm12", "xmm13", "xmm14", "xmm15", "rsi", CHANGED);
			return nullptr;
		},
		nullptr);
	return each(4);
}

KIND(held_by_running_stack)
KIND(held_by_running_register)
/* Both kinds are in the same thread, as it occupies a core. */
static Count set_up_running_stack()
{
	static volatile uint32_t runs;

	start_thread(
		[](void *) -> void * {
			void *volatile table[MOST] = {};
			Registers registers = {};

			fill(table, wanted, held_by_running_stack);
			fill(registers.general, 5, held_by_running_register);
			settle();
			asm volatile(TAKE_GENERAL SPIN : : "D"(&registers), "S"(&runs) : CHANGED);
			return table[0];
		},
		nullptr);
	while (!runs)
		sched_yield();
	return each(wanted);
}
static Count set_up_running_register()
{
	return each(5);
}
#endif

static ucontext_t caller;

/* A coroutine that has pointers on its stack and stays suspended. */
struct Coroutine {
	ucontext_t context;
	Allocate *allocate;
};

static Coroutine on_block, on_mapping;

static void coroutine(int which)
{
	Coroutine *self = which ? &on_mapping : &on_block;
	void *volatile table[MOST] = {};

	fill(table, wanted, self->allocate);
	scrub(SCRUBBED);
	swapcontext(&self->context, &caller);
	fail("coroutine");
}

static Count suspend(Coroutine *self, int which, void *stack, Allocate *allocate)
{
	getcontext(&self->context);
	self->context.uc_stack.ss_sp = stack;
	self->context.uc_stack.ss_size = STACK;
	self->allocate = allocate;
	makecontext(&self->context, reinterpret_cast<void (*)()>(coroutine), 1, which);
	swapcontext(&caller, &self->context);
	return each(wanted);
}

KIND(held_by_coroutine_on_block)
static Count set_up_coroutine_on_block()
{
	return suspend(&on_block, 0, scaffold(STACK), held_by_coroutine_on_block);
}

KIND(held_by_coroutine_on_mapping)
static Count set_up_coroutine_on_mapping()
{
	void *volatile *stack = map(STACK, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1);

	return suspend(&on_mapping, 1, const_cast<void **>(stack), held_by_coroutine_on_mapping);
}

KIND(held_by_signal_stack)
/* The thread waits in a signal handler, whose stack is a block. */
static Count set_up_signal_stack()
{
	start_thread(
		[](void *) -> void * {
			stack_t stack = {};
			struct sigaction action = {};

			stack.ss_sp = scaffold(STACK);
			stack.ss_size = STACK;
			action.sa_flags = SA_ONSTACK;
			action.sa_handler = [](int) {
				Waiting waiting = {held_by_signal_stack, wait_by_futex};

				hold_on_stack(&waiting);
			};
			if (sigaltstack(&stack, nullptr) != 0 || sigaction(SIGUSR1, &action, nullptr) != 0)
				fail("sigaltstack");
			raise(SIGUSR1);
			return nullptr;
		},
		nullptr);
	return each(wanted);
}

/* Table in the frame of main, on the first thread's stack. */
static void *volatile *of_main;

KIND(held_by_main_stack)
static Count set_up_main_stack()
{
	fill(of_main, wanted, held_by_main_stack);
	of_main = nullptr;
	return each(wanted);
}
