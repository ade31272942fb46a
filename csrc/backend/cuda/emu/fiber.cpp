#include "backend/cuda/emu/fiber.h"

#include <cstdint>
#include <cstring>

#include "backend/cuda/emu/sanitizers.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::emu {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::uint64_t kCanary = 0x5afe57ac5afe57acull;  // at the low end of a stack

// The two sides of the switch that is going on.
Fiber::Context* leaving = nullptr;
Fiber::Context* entering = nullptr;

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

struct Machine {
  void* stack_pointer = nullptr;  // while suspended

  // As if run_body had been interrupted before its first instruction: six registers, its address,
  // and a return address that is never used. The ABI wants 16-byte alignment there.
  void prepare(char* stack) {
    const auto end = reinterpret_cast<std::uintptr_t>(stack) + kStackBytes;
    void** slots = reinterpret_cast<void**>(end & ~std::uintptr_t{63}) - 8;
    std::memset(slots, 0, 8 * sizeof(void*));
    slots[6] = reinterpret_cast<void*>(&run_body);
    stack_pointer = slots;
  }
  void enter_from(Machine& from) { specdec_emu_switch(&from.stack_pointer, stack_pointer); }
};

#else

struct Machine {
  ucontext_t registers;

  void prepare(char* stack) {
    getcontext(&registers);
    registers.uc_stack.ss_sp = stack;
    registers.uc_stack.ss_size = kStackBytes;
    registers.uc_link = nullptr;
    makecontext(&registers, run_body, 0);
  }
  void enter_from(Machine& from) { swapcontext(&from.registers, &registers); }
};

#endif

struct Fiber::Context {
  std::unique_ptr<char[]> stack;  // null: that of a thread
  Machine machine;
  StackWatch watch;  // what a sanitizer knows about it
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  // When this one runs again, or for the first time.
  void arrived() { watch.arrived_from(leaving->watch); }
};

namespace {

void run_body() {
  Fiber::Context* context = entering;
  context->arrived();
  context->body(context->argument);
}

}  // namespace

Fiber::Fiber() : context_(std::make_unique<Context>()) { context_->watch.adopt_thread(); }

Fiber::Fiber(void (*body)(void*), void* argument, const Fiber* same_thread)
    : context_(std::make_unique<Context>()) {
  context_->stack.reset(new char[kStackBytes]);
  context_->body = body;
  context_->argument = argument;
  std::memcpy(context_->stack.get(), &kCanary, sizeof(kCanary));
  context_->watch.create(context_->stack.get(), kStackBytes,
                         same_thread == nullptr ? nullptr : &same_thread->context_->watch);
  context_->machine.prepare(context_->stack.get());
}

Fiber::~Fiber() {
  if (context_->stack != nullptr) context_->watch.destroy();
}

void Fiber::enter_from(Fiber& from) {
  leaving = from.context_.get();
  entering = context_.get();
  entering->watch.before_entry_from(leaving->watch);
  entering->machine.enter_from(leaving->machine);
  from.context_->arrived();
}

bool Fiber::overflowed() const {
  return std::memcmp(context_->stack.get(), &kCanary, sizeof(kCanary)) != 0;
}

}  // namespace specdec::emu
