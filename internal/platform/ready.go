package platform

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"

	"tidemill.dev/broker"
)

// Status is how something is that the process depends on.
type Status string

// The statuses. Only what has failed makes the process not ready: a config that
// is refused leaves the one before in force, and taking every replica out of
// service for a slip in a file would turn the slip into an outage.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Failed   Status = "failed"
)

// Check is one thing that the process depends on, as it is now.
type Check struct {
	Name   string `json:"name"` // kafka, redis, streams, config or, on a laptop, disk
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Readiness is all of them.
type Readiness struct {
	Status Status  `json:"status"` // the worst of the checks
	Checks []Check `json:"checks"`
}

// Ready asks everything that the process depends on, now and at once.
func (p *Platform) Ready(ctx context.Context) Readiness {
	probes := []func(context.Context) Check{p.checkKafka, p.checkRedis, p.checkStreams, p.checkConfig}
	if p.servers != nil {
		probes = append(probes, p.checkDisk)
	}
	r := Readiness{Status: OK, Checks: make([]Check, len(probes))}
	var all sync.WaitGroup
	for i, probe := range probes {
		all.Go(func() { r.Checks[i] = probe(ctx) })
	}
	all.Wait()
	for _, c := range r.Checks {
		if c.Status == Failed || c.Status == Degraded && r.Status == OK {
			r.Status = c.Status
		}
	}
	return r
}

func (p *Platform) checkKafka(ctx context.Context) Check {
	return outcome("kafka", p.addresses.Kafka, p.broker.Ping(ctx))
}

func (p *Platform) checkRedis(ctx context.Context) Check {
	if p.redis == nil {
		return Check{"redis", OK, "none is configured and nothing needs one yet"}
	}
	return outcome("redis", p.addresses.Redis, p.redis.Ping(ctx).Err())
}

func outcome(name, address string, err error) Check {
	if err != nil {
		return Check{name, Failed, fmt.Sprintf("%s: %v", address, err)}
	}
	return Check{name, OK, address}
}

// checkStreams holds the streams against the config without changing them.
func (p *Platform) checkStreams(ctx context.Context) Check {
	wanted := specs(p.Config())
	report, err := p.broker.EnsureStreams(ctx, wanted, broker.EnsureOptions{DryRun: true, Reorder: p.reorder})
	if err != nil {
		return Check{"streams", Failed, err.Error()}
	}
	var missing, differ []string
	for _, c := range report.Changes {
		if c.What == "created" {
			missing = append(missing, c.Stream)
			continue
		}
		differ = append(differ, fmt.Sprintf("%s has %s %s, not %s", c.Stream, c.What, c.From, c.To))
	}
	for _, d := range report.Drift {
		differ = append(differ, fmt.Sprintf("%s has %s %s, not %s: %s", d.Stream, d.What, d.Have, d.Want, d.Next))
	}
	switch {
	case len(missing) > 0:
		return Check{"streams", Failed, "missing: " + strings.Join(missing, ", ") + "; a restart creates them"}
	case len(differ) > 0:
		return Check{"streams", Degraded, strings.Join(differ, "; ")}
	}
	return Check{"streams", OK, fmt.Sprintf("%d as the config wants them", len(wanted))}
}

// The embedded Kafka answers though its disk is full, and then refuses what is
// published; so it is asked for, and a warning comes before.
const (
	diskFull   = 4 << 20 // a batch, its index and what is written at the stop
	diskFilled = 256 << 20
)

func (p *Platform) checkDisk(context.Context) Check {
	left, err := p.servers.DiskLeft()
	if err != nil {
		return Check{"disk", Failed, err.Error()}
	}
	return room(left)
}

func room(left int64) Check {
	if left == math.MaxInt64 {
		return Check{"disk", OK, "no limit is known"}
	}
	mib := fmt.Sprintf("%d MiB left where the data folder is", left>>20)
	switch {
	case left < diskFull:
		return Check{"disk", Failed, mib + ": publishing fails; free some, or stop and move the folder to where there is more"}
	case left < diskFilled:
		return Check{"disk", Degraded, mib + ": publishing fails when none is left"}
	}
	return Check{"disk", OK, mib}
}

func (p *Platform) checkConfig(context.Context) Check {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused != nil {
		return Check{"config", Degraded, fmt.Sprintf("the file does not apply and the config %s before it stays in force: %v", p.config.Hash(), p.refused)}
	}
	return Check{"config", OK, p.config.Hash()}
}
