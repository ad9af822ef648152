package main

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/internal/remote"
)

func poolsCommand() command {
	return command{
		name:    "pools",
		summary: "list the pools: their slots, how many are in use, how many runs wait for one",
		about: `LINGERING are pods that have done their run and wait for another, as the pool's
linger has them do, and IDLE GPU TIME is what GPUs have waited in such pods.

` + atTheGate,
		examples: []example{
			{"tidemill pools", "a table"},
			{"tidemill pools -o json", "for a script"},
		},
		make: func() program {
			return &standingList{output: "text", list: listPools}
		},
	}
}

func listPools(ctx context.Context, g *remote.Gateway) (any, [][]string, string, error) {
	all, err := g.Pools(ctx)
	rows := [][]string{{"POOL", "SLOTS", "RUNNING", "WAITING", "GPUS", "LINGERING", "IDLE GPU TIME", "STATE"}}
	for i := range all.Pools {
		p := &all.Pools[i]
		slots, gpus := thousands(int64(p.Slots)), fmt.Sprint(p.GPUs)
		if p.Slots == 0 {
			slots = "any"
		}
		if p.GPUs < 0 {
			gpus = unknown
		}
		rows = append(rows, []string{harmless(p.Name), slots, thousands(int64(p.Running)), thousands(int64(p.Waiting)), gpus,
			thousands(int64(p.Lingering)), (time.Duration(p.IdleSeconds) * time.Second).String(), restingState(p.PausedBy, p.PausedSince)})
	}
	return all.Pools, rows, "The config has no pools.", err
}

func poolsPauseCommand() command {
	return command{
		name:    "pools pause",
		args:    "NAME",
		summary: "have no attempt begin in a pool until it is resumed",
		about: `Those that are under way go on. It is how a machine is emptied for a while.

` + atTheGate,
		examples: []example{{"tidemill pools pause gpu", "from now on"}},
		make: func() program {
			return &restAct{do: (*remote.Gateway).PausePool, done: "paused", already: "was paused already"}
		},
	}
}

func poolsResumeCommand() command {
	return command{
		name:     "pools resume",
		args:     "NAME",
		summary:  "have attempts begin in a pool again",
		about:    atTheGate,
		examples: []example{{"tidemill pools resume gpu", "and what waits begins"}},
		make: func() program {
			return &restAct{do: (*remote.Gateway).ResumePool, done: "resumed", already: "was not paused"}
		},
	}
}
