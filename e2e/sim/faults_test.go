package sim

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// carryOut does the faults of the plan at their times, and returns at the end of the load.
func (w *world) carryOut() {
	began := time.Now()
	all := slices.SortedFunc(slices.Values(w.p.faults), func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	for _, f := range all {
		time.Sleep(time.Until(began.Add(f.at)))
		w.history.say("FAULT: %v", f)
		w.do(f)
	}
	time.Sleep(time.Until(began.Add(w.p.load)))
}

func (w *world) do(f fault) {
	switch f.kind {
	case "kill":
		for _, o := range w.procs {
			if o.name == f.host {
				o.host.Load().KillAfter(f.n)
			}
		}
	case "cut":
		w.net.CutBetween(func(conn string) bool { return chance(w.p.seed, conn, int(f.at))%uint64(f.n) == 0 })
	case "block":
		w.net.Block(f.host, f.other)
		w.lastings.Go(func() {
			time.Sleep(f.lasts)
			w.net.Heal(f.host, f.other)
			w.history.say("healed: %s to %s", f.host, f.other)
		})
	case "flush Redis":
		if answer, err := w.redis("FLUSHALL"); err != nil {
			w.history.say("flush Redis: %v %s", err, answer)
		}
	case "change config":
		w.changeConfig()
	}
}

// redis sends one command on a connection of its own.
func (w *world) redis(command string) (string, error) {
	to := at(w.procs[0].host.Load(), redisPort)
	if w.servers != nil {
		to = w.servers.Redis()
	}
	c, err := w.chaos.Dial(w.ctx, "tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
		return "", err
	}
	answer := make([]byte, 1<<10)
	n, err := c.Read(answer)
	if err == io.EOF {
		err = nil
	}
	return string(answer[:n]), err
}
