package platform

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
)

// Ready asks everything that the process depends on, now and at once.
func (p *Platform) Ready(ctx context.Context) api.Readiness {
	probes := []func(context.Context) api.Check{p.checkKafka, p.checkRedis, p.checkStreams, p.checkConfig}
	if p.servers != nil {
		probes = append(probes, p.checkDisk)
	}
	probes = append(probes, p.checks()...)
	r := api.Readiness{Status: api.OK, Checks: make([]api.Check, len(probes))}
	var all sync.WaitGroup
	for i, probe := range probes {
		all.Go(func() { r.Checks[i] = probe(ctx) })
	}
	all.Wait()
	for _, c := range r.Checks {
		if c.Status == api.Failed || c.Status == api.Degraded && r.Status == api.OK {
			r.Status = c.Status
		}
	}
	return r
}

func (p *Platform) checkKafka(ctx context.Context) api.Check {
	return outcome("kafka", p.addresses.Kafka, p.broker.Ping(ctx))
}

func (p *Platform) checkRedis(ctx context.Context) api.Check {
	if p.redis == nil {
		return api.Check{Name: "redis", Status: api.OK, Detail: "none is configured: repeats are not recognised"}
	}
	c := outcome("redis", p.addresses.Redis, p.redis.Ping(ctx).Err())
	if c.Status == api.Failed { // a cache: without it repeats are stored, and nothing is refused
		c.Status = api.Degraded
	}
	p.mu.Lock()
	memory := p.repeats
	p.mu.Unlock()
	if c.Status == api.OK && memory.Away() { // it is tried again within seconds
		c.Status, c.Detail = api.Degraded, p.addresses.Redis+": it answers, and the repeats of other gateways are not recognised yet"
	}
	return c
}

func outcome(name, address string, err error) api.Check {
	if err != nil {
		return api.Check{Name: name, Status: api.Failed, Detail: fmt.Sprintf("%s: %v", address, err)}
	}
	return api.Check{Name: name, Status: api.OK, Detail: address}
}

// checkStreams holds the streams against the config without changing them.
func (p *Platform) checkStreams(ctx context.Context) api.Check {
	wanted := specs(p.Config())
	report, err := p.broker.EnsureStreams(ctx, wanted, broker.EnsureOptions{DryRun: true, Reorder: p.reorder})
	if err != nil {
		return api.Check{Name: "streams", Status: api.Failed, Detail: err.Error()}
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
		return api.Check{Name: "streams", Status: api.Failed, Detail: "missing: " + strings.Join(missing, ", ") + "; a restart creates them"}
	case len(differ) > 0:
		return api.Check{Name: "streams", Status: api.Degraded, Detail: strings.Join(differ, "; ")}
	}
	return api.Check{Name: "streams", Status: api.OK, Detail: fmt.Sprintf("%d as the config wants them", len(wanted))}
}

// The embedded Kafka answers though its disk is full, and then refuses what is
// published; so it is asked for, and a warning comes before.
const (
	diskFull   = 4 << 20 // a batch, its index and what is written at the stop
	diskFilled = 256 << 20
)

func (p *Platform) checkDisk(context.Context) api.Check {
	left, err := p.servers.DiskLeft()
	if err != nil {
		return api.Check{Name: "disk", Status: api.Failed, Detail: err.Error()}
	}
	return room(left)
}

func room(left int64) api.Check {
	if left == math.MaxInt64 {
		return api.Check{Name: "disk", Status: api.OK, Detail: "no limit is known"}
	}
	mib := fmt.Sprintf("%d MiB left where the data folder is", left>>20)
	switch {
	case left < diskFull:
		return api.Check{Name: "disk", Status: api.Failed, Detail: mib + ": publishing fails; free some, or stop and move the folder to where there is more"}
	case left < diskFilled:
		return api.Check{Name: "disk", Status: api.Degraded, Detail: mib + ": publishing fails when none is left"}
	}
	return api.Check{Name: "disk", Status: api.OK, Detail: mib}
}

func (p *Platform) checkConfig(context.Context) api.Check {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused != nil {
		return api.Check{Name: "config", Status: api.Degraded, Detail: fmt.Sprintf("the file does not apply and the config %s before it stays in force: %v", p.config.Hash(), p.refused)}
	}
	return api.Check{Name: "config", Status: api.OK, Detail: p.config.Hash()}
}
