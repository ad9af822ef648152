package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// figures are the measurements of all rounds. They are printed and never asserted, because a busy
// machine must not fail the test.
type figures struct {
	mu       sync.Mutex
	takeover []time.Duration // time from a reader's SIGKILL until its partition is read again
	stall    []time.Duration // longest wait of an event while members came or went by SIGTERM
	drain    []time.Duration
	reopen   []time.Duration
	folder   int64 // size of the largest reopened folder
	counts   map[string]int
}

func (f *figures) add(r *round) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drain = append(f.drain, r.drained)
	f.counts["rounds"]++
	f.counts["events"] += len(r.in)
	for _, e := range r.journal {
		switch e.verb {
		case "skip", "refused", "aborted", "copied":
			f.counts[e.verb]++
		case "open":
			if size := parseNumber(e.words[1]); size > 0 {
				f.reopen = append(f.reopen, time.Duration(parseNumber(e.words[0]))*time.Microsecond)
				f.folder = max(f.folder, size)
			}
		}
	}
	switch r.plan.profile {
	case takeover:
		f.takeover = append(f.takeover, r.takeovers()...)
	case calm:
		f.stall = append(f.stall, r.stalls()...)
	}
}

// handlingStarts returns the beginnings of handling, in order of time.
func (r *round) handlingStarts() []entry {
	var all []entry
	for _, e := range r.journal {
		if e.verb == "begin" {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return a.at.Compare(b.at) })
	return all
}

// takeovers returns the time until another process reads each partition of a killed reader.
func (r *round) takeovers() []time.Duration {
	begins := r.handlingStarts()
	var all []time.Duration
	for _, hit := range r.fleet.hits("consumer") {
		holder := map[int32]entry{} // last reader of each partition before the kill
		after := map[int32]time.Duration{}
		for _, e := range begins {
			p := e.place().partition
			victim := e.name == hit.name && e.life == hit.life
			switch _, taken := after[p]; {
			case victim || e.at.Before(hit.at):
				holder[p] = e
			case !taken && holder[p].name == hit.name && holder[p].life == hit.life:
				after[p] = e.at.Sub(hit.at)
			}
		}
		for _, d := range after {
			all = append(all, d)
		}
	}
	return all
}

// stallWindow is the time after a join or leave in which events may wait because of it.
const stallWindow = 2 * time.Second

// stalls returns the longest wait of an event, for each partition and each joining or leaving of a
// member in a calm round. A killed publisher makes no event wait.
func (r *round) stalls() []time.Duration {
	begins := r.handlingStarts()
	var all []time.Duration
	for _, e := range r.journal {
		if !strings.HasPrefix(e.name, "consumer") || e.verb != "joining" && e.verb != "leaving" || e.at.Before(r.fleet.began.Add(warmUp)) {
			continue
		}
		worst := map[int32]time.Duration{}
		for _, b := range begins {
			if b.at.After(e.at) && b.at.Before(e.at.Add(stallWindow)) {
				p := b.place().partition
				worst[p] = max(worst[p], time.Duration(parseNumber(b.words[2]))*time.Millisecond)
			}
		}
		for _, d := range worst {
			all = append(all, d)
		}
	}
	return all
}

func (f *figures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("%v\ntakeover after SIGKILL: %s (bar: 10s)\nstall at polite joins and leaves: %s (bar: p99 2s)\n"+
		"drain: %s\nreopening up to %.1f MB: %s\nskipped by read-back, %d times: torn transactions, and processors overtaken before they knew", f.counts,
		quantiles(f.takeover), quantiles(f.stall), quantiles(f.drain), float64(f.folder)/1e6, quantiles(f.reopen), f.counts["skip"])
}

func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none measured"
	}
	slices.Sort(all)
	at := func(q float64) time.Duration {
		return all[min(len(all)-1, int(q*float64(len(all))))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s of %d", at(0.5), at(0.99), at(1), len(all))
}
