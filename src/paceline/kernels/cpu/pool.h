// Threads that compute one pass together. A pass is a row of phases, a phase a number of chunks; a phase begins when
// every chunk of the one before it is done.
//
// - Nobody waits for a thread, only for chunks: one that wakes late, or that the machine has taken away, joins where
//   the pass is. The caller begins at once and finishes alone if nobody comes.
// - A thread that waits spins for some microseconds, then yields its core to whoever wants it; a helper that has had
//   nothing to do for a while sleeps.
// - One pass at a time. After a fork the child gets threads of its own when it first needs them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <thread>

namespace paceline {

class Job {
  public:
    virtual int64_t chunks(int64_t phase) const = 0;  // 0: nothing to do; below 0: the pass is over
    virtual void run(int64_t phase, int64_t chunk) = 0;

  protected:
    ~Job() = default;
};

static inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    static Pool &instance() {
        std::lock_guard<std::mutex> hold(creation());
        if (current() == nullptr) {
            static bool registered = false;
            if (!registered) pthread_atfork(nullptr, nullptr, forget);
            registered = true;
            current() = new Pool;  // never deleted: helpers may look at it until the process ends
        }
        return *current();
    }

    // All phases of `job`, on at most `threads` threads; returns when the last is done.
    void run(Job &job, int threads) {
        std::lock_guard<std::mutex> one_at_a_time(passes_);
        job_ = &job;
        is_over_.store(false, std::memory_order_relaxed);
        limit_.store(threads, std::memory_order_relaxed);
        open(0, ticket_.load(std::memory_order_relaxed) >> COUNT_BITS);
        if (threads > 1) call_helpers(threads);
        for (int idle = 0; !is_over_.load(std::memory_order_acquire);) idle = help() ? 0 : waited(idle);
    }

  private:
    static constexpr int COUNT_BITS = 24;  // of the ticket, for the chunks that are left; above: the phase's number
    static constexpr int SPINS = 1500;     // pauses before yielding, some 30 µs
    static constexpr int64_t IDLE_NANOSECONDS = 400 * 1000;  // before a helper sleeps

    static std::mutex &creation() {
        static std::mutex mutex;
        return mutex;
    }
    static Pool *&current() {
        static Pool *pool = nullptr;
        return pool;
    }
    static void forget() {  // in a child, where the helpers are not
        new (&creation()) std::mutex;
        current() = nullptr;
    }

    static int waited(int idle) {
        if (idle < SPINS)
            pause_briefly();
        else
            sched_yield();
        return idle < SPINS ? idle + 1 : idle;
    }

    // Takes a chunk and computes it; false if none is left now. A chunk taken keeps its phase open, so that what the
    // phase is may be read after it.
    bool help() {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        uint64_t left;
        do {
            left = ticket & ((uint64_t(1) << COUNT_BITS) - 1);
            if (left == 0) return false;
        } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel));
        const int64_t phase = phase_, count = count_;
        job_->run(phase, count - int64_t(left));
        if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) open(phase + 1, ticket >> COUNT_BITS);
        return true;
    }

    // The next phase that has chunks, or the end; called by one thread at a time, when no chunk is out.
    void open(int64_t phase, uint64_t number) {
        int64_t count;
        while ((count = job_->chunks(phase)) == 0) phase++;
        if (count < 0) {
            is_over_.store(true, std::memory_order_release);
            return;
        }
        phase_ = phase;
        count_ = count;
        done_.store(0, std::memory_order_relaxed);
        ticket_.store((number + 1) << COUNT_BITS | uint64_t(count), std::memory_order_release);
    }

    void call_helpers(int threads) {
        std::lock_guard<std::mutex> hold(sleep_);
        calls_++;
        for (; num_helpers_ < threads - 1; num_helpers_++) {
            try {
                std::thread(&Pool::serve, this, num_helpers_ + 1, calls_ - 1).detach();
            } catch (const std::exception &) {  // no more threads to be had: those there are do it
                break;
            }
        }
        if (num_asleep_ > 0) called_.notify_all();
    }

    void serve(int number, uint64_t calls_seen) {
        for (;;) {
            {
                std::unique_lock<std::mutex> hold(sleep_);
                num_asleep_++;
                called_.wait(hold, [&] { return calls_ != calls_seen; });
                num_asleep_--;
                calls_seen = calls_;
            }
            auto since = std::chrono::steady_clock::now();
            for (int idle = 0; number < limit_.load(std::memory_order_relaxed);) {
                const bool helped = help();
                idle = helped ? 0 : waited(idle);
                if (idle % 256 != 255 && idle < SPINS) continue;
                const auto now = std::chrono::steady_clock::now();
                if (idle < 256) since = now;
                if ((now - since).count() > IDLE_NANOSECONDS) break;
            }
        }
    }

    std::mutex passes_;
    Job *job_ = nullptr;
    int64_t phase_ = 0, count_ = 0;  // written before a ticket with chunks, read after one was taken
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) std::atomic<bool> is_over_{true};
    std::atomic<int> limit_{1};

    std::mutex sleep_;  // of what follows
    std::condition_variable called_;
    uint64_t calls_ = 0;
    int num_helpers_ = 0, num_asleep_ = 0;
};

}  // namespace paceline
