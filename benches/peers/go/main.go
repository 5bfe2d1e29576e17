// The locks of Go, for scripts/peers: `fairlock-peers PEER ADDRESS`, or `fairlock-peers etcd-server OPTION…`.
//
// It answers each line of its input with a line, as the programs in the other languages do (../README.md):
//
//	open WORKERS                                        -> ready
//	race NAME WORKERS HOLD_US RUN_MS own|one            -> longest wait, p50, p99 in ns, then the turns of each worker
//	hold NAME                                           -> held
//	free                                                -> freed
//	wait NAME WORKERS                                   -> waiting, and got when the first of them has the lock
package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

// Longer than any hold here, so that no lock expires in a run.
const lease = 30 * time.Second

// For those that ask again after a pause: with their defaults of 100 ms and more they would mostly sleep.
const pause = time.Millisecond

// Waits for the lock of a name; the result gives it back.
type acquire func(name string) (release func() error, err error)

// Connects, and returns what opens a worker: a connection or session of its own, where the peer needs that.
type connect func(address string) (open func() (acquire, error), err error)

var peers = map[string]connect{
	"rueidislock": rueidisLock,
	"redsync":     redsyncLock,
	"redislock":   redisLock,
	"postgres":    postgresLock,
	"etcd":        etcdLock,
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "etcd-server" {
		etcdmain.Main(append([]string{"etcd"}, os.Args[2:]...))
		return
	}
	if len(os.Args) != 3 || peers[os.Args[1]] == nil {
		fail(fmt.Errorf("usage: %s PEER ADDRESS", os.Args[0]))
	}
	open, err := peers[os.Args[1]](os.Args[2])
	fail(err)
	program := program{open: open}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(program.answer(lines.Text()))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type program struct {
	open    func() (acquire, error)
	workers []acquire
	release func() error
}

func (p *program) answer(line string) string {
	verb, rest, _ := strings.Cut(line, " ")
	var name, names string
	var workers, holdUs, runMs int
	switch verb {
	case "open":
		fmt.Sscan(rest, &workers)
		p.opened(workers)
		return "ready"
	case "race":
		fmt.Sscan(rest, &name, &workers, &holdUs, &runMs, &names)
		hold, run := time.Duration(holdUs)*time.Microsecond, time.Duration(runMs)*time.Millisecond
		return race(p.opened(workers), name, hold, run, names == "own")
	case "hold":
		var err error
		p.release, err = p.opened(1)[0](rest)
		fail(err)
		return "held"
	case "free":
		fail(p.release())
		return "freed"
	case "wait":
		fmt.Sscan(rest, &name, &workers)
		for _, lock := range p.opened(workers) {
			go func() {
				_, err := lock(name)
				fail(err)
				fmt.Println("got")
			}()
		}
		return "waiting"
	}
	return "unknown: " + line
}

func (p *program) opened(workers int) []acquire {
	for len(p.workers) < workers {
		worker, err := p.open()
		fail(err)
		p.workers = append(p.workers, worker)
	}
	return p.workers[:workers]
}

// All workers take the lock as often as they can until the time is up.
func race(workers []acquire, name string, hold, run time.Duration, own bool) string {
	counts, longest := make([]int, len(workers)), make([]time.Duration, len(workers))
	pairs := make([][]time.Duration, len(workers))
	until := time.Now().Add(run)
	var all sync.WaitGroup
	for i, lock := range workers {
		mine := name
		if own {
			mine = fmt.Sprint(name, i)
		}
		all.Go(func() {
			for time.Now().Before(until) {
				asked := time.Now()
				release, err := lock(mine)
				fail(err)
				waited := time.Since(asked)
				longest[i] = max(longest[i], waited)
				// A wait that ends after the time is up is no turn, but it is a wait.
				if time.Now().Before(until) {
					counts[i]++
				}
				if hold > 0 {
					time.Sleep(hold)
				}
				given := time.Now()
				fail(release())
				pairs[i] = append(pairs[i], waited+time.Since(given))
			}
		})
	}
	all.Wait()
	sorted := slices.Concat(pairs...)
	slices.Sort(sorted)
	at := func(part float64) int64 { return sorted[int(part*float64(len(sorted)-1))].Nanoseconds() }
	answer := fmt.Sprint(slices.Max(longest).Nanoseconds(), " ", at(0.5), " ", at(0.99))
	for _, count := range counts {
		answer += fmt.Sprint(" ", count)
	}
	return answer
}
