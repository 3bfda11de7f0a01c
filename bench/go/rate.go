// Measures golang.org/x/time/rate as the Rust harness measures its rows: threads pinned, short
// batches, and only batches count that had their processor to themselves.
//
// Usage: rate full|partly|denied GOROUTINES. Prints nanoseconds per call.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/time/rate"
)

const (
	batches     = 30
	batchTime   = time.Millisecond
	warmUp      = 30 * time.Millisecond
	cpuShareMin = 0.95
	overlapMin  = 0.70
	// CLOCK_THREAD_CPUTIME_ID of Linux.
	threadClock = 3
)

// sink keeps the compiler from dropping the calls.
var sink atomic.Bool

type span struct{ start, end, cpu int64 }

func threadCPU() int64 {
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

func pin(cpu int) {
	runtime.LockOSThread()
	set := [16]uint64{}
	set[cpu/64] = 1 << (cpu % 64)
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
}

func limiter(name string) *rate.Limiter {
	now := time.Now()
	switch name {
	case "full":
		return rate.NewLimiter(1e9, 1e9)
	case "partly":
		l := rate.NewLimiter(1000, 4_000_000_000)
		l.AllowN(now, 1_000_000)
		return l
	case "denied":
		l := rate.NewLimiter(rate.Every(time.Hour), 10)
		l.AllowN(now, 10)
		return l
	}
	fmt.Fprintf(os.Stderr, "%q is no case; use full, partly or denied\n", name)
	os.Exit(2)
	return nil
}

type barrier struct {
	threads int64
	arrived atomic.Int64
}

func (b *barrier) wait() {
	ticket := b.arrived.Add(1) - 1
	goal := (ticket/b.threads + 1) * b.threads
	for b.arrived.Load() < goal {
	}
}

func run(l *rate.Limiter, calls int) {
	allowed := false
	for i := 0; i < calls; i++ {
		allowed = l.Allow()
	}
	if allowed {
		sink.Store(allowed)
	}
}

func work(l *rate.Limiter, index int, b *barrier, calls *atomic.Int64) []span {
	pin(index % runtime.NumCPU())
	b.wait()
	start, done := time.Now(), 0
	for time.Since(start) < warmUp {
		run(l, 1000)
		done += 1000
	}
	if index == 0 {
		perCall := float64(time.Since(start)) / float64(done)
		calls.Store(int64(float64(batchTime)/perCall) + 1)
	}
	b.wait()
	origin, spans := start, make([]span, batches)
	for i := range spans {
		b.wait()
		cpu, from := threadCPU(), time.Since(origin)
		run(l, int(calls.Load()))
		to := time.Since(origin)
		spans[i] = span{start.UnixNano() + int64(from), start.UnixNano() + int64(to), threadCPU() - cpu}
	}
	return spans
}

// judge returns the mean length of one batch over its threads, if it counts.
func judge(spans []span) (float64, bool) {
	first, lastStart, firstEnd, last, sum := spans[0].start, spans[0].start, spans[0].end, spans[0].end, 0.0
	for _, s := range spans {
		wall := float64(s.end - s.start)
		if float64(s.cpu) < cpuShareMin*wall {
			return 0, false
		}
		if s.start < first {
			first = s.start
		}
		if s.start > lastStart {
			lastStart = s.start
		}
		if s.end < firstEnd {
			firstEnd = s.end
		}
		if s.end > last {
			last = s.end
		}
		sum += wall
	}
	return sum / float64(len(spans)), float64(firstEnd-lastStart) >= overlapMin*float64(last-first)
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: rate full|partly|denied GOROUTINES")
		os.Exit(2)
	}
	threads, err := strconv.Atoi(os.Args[2])
	if err != nil || threads < 1 {
		fmt.Fprintf(os.Stderr, "%q is no number of goroutines\n", os.Args[2])
		os.Exit(2)
	}
	l := limiter(os.Args[1])
	if want := os.Args[1] != "denied"; l.Allow() != want {
		fmt.Fprintln(os.Stderr, "the limiter is not in the state of its case")
		os.Exit(1)
	}
	b, calls, all := &barrier{threads: int64(threads)}, &atomic.Int64{}, make([][]span, threads)
	var group sync.WaitGroup
	for i := range all {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			all[i] = work(l, i, b, calls)
		}(i)
	}
	group.Wait()
	var figures []float64
	for batch := 0; batch < batches; batch++ {
		var spans []span
		for _, s := range all {
			spans = append(spans, s[batch])
		}
		if mean, counts := judge(spans); counts {
			figures = append(figures, mean/float64(calls.Load()))
		}
	}
	if len(figures) < 10 {
		fmt.Fprintln(os.Stderr, "the machine is too busy to tell")
		os.Exit(1)
	}
	sort.Float64s(figures)
	index := len(figures) / 2
	if threads == 1 {
		index = len(figures) / 4
	}
	fmt.Printf("%.2f\n", figures[index])
}
