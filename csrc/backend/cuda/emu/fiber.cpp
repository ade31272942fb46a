#include "backend/cuda/emu/fiber.h"

#include <cstdint>
#include <cstring>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::emu {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::uint64_t kCanary = 0x5afe57ac5afe57acull;  // at the low end of a stack

// The fiber that is entered for the first time: run_body has no other way to learn it.
thread_local Fiber::Context* starting = nullptr;

void run_body();

}  // namespace

#if defined(__x86_64__)

// Saves the registers that a callee must keep (System V ABI) on the current stack, stores the stack
// pointer to *save and continues on the stack `load`. ucontext would do, but it makes two system
// calls per switch.
extern "C" void specdec_emu_switch(void** save, void* load);
asm(R"(
.text
.hidden specdec_emu_switch
.globl specdec_emu_switch
.type specdec_emu_switch, @function
specdec_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size specdec_emu_switch, .-specdec_emu_switch
)");

struct Fiber::Context {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  void* own = nullptr;    // stack pointer while suspended
  void* outer = nullptr;  // of the one who resumed
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  // As if run_body had been interrupted before its first instruction: six registers, its address,
  // and a return address that is never used. The ABI wants 16-byte alignment there.
  void prepare() {
    const auto end = reinterpret_cast<std::uintptr_t>(stack.get()) + kStackBytes;
    void** slots = reinterpret_cast<void**>(end & ~std::uintptr_t{63}) - 8;
    std::memset(slots, 0, 8 * sizeof(void*));
    slots[6] = reinterpret_cast<void*>(&run_body);
    own = slots;
  }
  void enter() { specdec_emu_switch(&outer, own); }
  void leave() { specdec_emu_switch(&own, outer); }
};

#else

struct Fiber::Context {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  ucontext_t own, outer;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  void prepare() {
    getcontext(&own);
    own.uc_stack.ss_sp = stack.get();
    own.uc_stack.ss_size = kStackBytes;
    own.uc_link = nullptr;
    makecontext(&own, run_body, 0);
  }
  void enter() { swapcontext(&outer, &own); }
  void leave() { swapcontext(&own, &outer); }
};

#endif

namespace {

void run_body() {
  Fiber::Context* context = starting;
  context->body(context->argument);
}

}  // namespace

Fiber::Fiber(void (*body)(void*), void* argument) : context_(std::make_unique<Context>()) {
  context_->body = body;
  context_->argument = argument;
  std::memcpy(context_->stack.get(), &kCanary, sizeof(kCanary));
  context_->prepare();
}

Fiber::~Fiber() = default;

void Fiber::resume() {
  starting = context_.get();
  context_->enter();
}

void Fiber::suspend() { context_->leave(); }

bool Fiber::overflowed() const {
  return std::memcmp(context_->stack.get(), &kCanary, sizeof(kCanary)) != 0;
}

}  // namespace specdec::emu
