package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// A peer is a program that scores the stream, exactly once, until it is stopped. All peers are
// measured alike, from outside: the offsets that its consumer group has committed are its progress,
// and its CPU time and memory are in /proc. So a peer is written as its users write it.
type peer struct {
	name  string
	ours  bool
	start func(out, group string) ([]string, error) // command; nil if the peer is not installed
	why   string                                    // reason for that
	turns turns
}

// The settings of the broker's Java that Kafka's own start script has.
func brokerJava() []string {
	return []string{"-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"}
}

// errNotHere is the error of a scenario that this machine cannot run, because a program is missing.
var errNotHere = errors.New("not measured here")

// startKafka puts an Apache Kafka in the place of the embedded broker, on the cores that the peers
// do not use.
func (w *scoreBench) startKafka(ctx context.Context) (err error) {
	if w.kafka, err = realservers.StartKafka(ctx, realservers.KafkaOptions{Java: brokerJava()}); err != nil {
		return fmt.Errorf("%w: %w", errNotHere, err)
	}
	w.server.addrs[0] = w.kafka.Addr()
	return pinProcess(ctx, w.brokerPID(), 0, runtime.NumCPU()-1-w.Cores)
}

func (w *scoreBench) brokerPID() int { return w.kafka.Nodes()[0].PID() }

// peers returns this program's scorer, another build's if there is one, and the peers that the
// scenario names.
func (w *scoreBench) peers(ctx context.Context) []*peer {
	all := []*peer{w.ourPeer("Tidemill", w.self)}
	if w.scorePlan.beside != "" {
		all = append(all, w.ourPeer("Tidemill, the other build", w.scorePlan.beside))
	}
	for _, name := range w.Beside {
		all = append(all, w.otherPeer(ctx, name))
	}
	return all
}

func (w *scoreBench) ourPeer(name, program string) *peer {
	return &peer{name: name, ours: true, start: func(string, string) ([]string, error) {
		arg, err := w.argument(w.newTask(false, w.Name))
		return []string{program, roleScorer, arg}, err
	}}
}

// The names of peers in the table, by their names in scenarios.
const (
	namePeerStreams = "Kafka Streams, ONNX Runtime"
	namePeerFlink   = "Flink, ONNX Runtime"
	namePeerTuned   = "Python, tuned"
)

func (w *scoreBench) otherPeer(ctx context.Context, name string) *peer {
	p, install := &peer{}, name
	var command func(start string) []string
	switch name {
	case "streams":
		p.name, command = namePeerStreams, func(classes string) []string { return peerJava(classes, "Streams") }
	case "flink":
		p.name, command = namePeerFlink, func(classes string) []string { return peerJava(classes, "Flink") }
	case "tuned":
		p.name, install = namePeerTuned, "scorer"
		command = func(python string) []string {
			return []string{python, filepath.Join(sourceFolder("peers"), "python", "tuned.py")}
		}
	}
	start, why := findInstalled(ctx, install, w.fetch)
	if p.why = why; why != "" {
		return p
	}
	p.start = func(out, group string) ([]string, error) {
		return append(command(start), w.server.addrs[0], topicOf(w, inStream), topicOf(w, out), w.st.names.Group(group),
			filepath.Join(w.modelFolder(), fleet.Key(0)+".onnx"), inStream), nil
	}
	return p
}

// peerJava returns a command of Java. Flink needs the packages of the JDK that its own scripts open.
func peerJava(classes, main string) []string {
	return []string{"java", "-Xms512m", "-Xmx512m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
		"--add-opens=java.base/java.time=ALL-UNNAMED", "-cp", classes, main}
}

// runPeer gives a peer a turn on a new output stream, and audits its outputs.
func (w *scoreBench) runPeer(ctx context.Context, p *peer, audit *comparison) (m measuredTurn, err error) {
	w.rounds++
	out, group := outStream(w.rounds), fmt.Sprintf("peer-%d", w.rounds)
	if p.ours {
		group = "scorer." + scorerName(w.rounds)
	}
	spec := []broker.StreamSpec{{Name: out, Partitions: partitions}}
	if _, err := w.st.b.EnsureStreams(ctx, spec, broker.EnsureOptions{}); err != nil {
		return m, err
	}
	command, err := p.start(out, group)
	if err != nil {
		return m, err
	}
	run, err := startPinned(command, runtime.NumCPU()-w.Cores, runtime.NumCPU()-1)
	if err != nil {
		return m, err
	}
	defer run.stop()
	if m, err = w.measureSpan(ctx, run, group); err != nil {
		return m, err
	}
	a, err := w.newAudit()
	if err == nil {
		err = w.auditPeer(ctx, a, group, out)
	}
	run.stop()
	if err == nil {
		err = w.st.remove(ctx, out)
	}
	if p.ours {
		audit.count(a)
	} else if err == nil && a.first != nil {
		err = fmt.Errorf("its outputs are wrong: %w", a.first)
	}
	return m, err
}

// committedEvery is the interval of the questions for committed offsets. They are part of the
// broker's CPU time, and cost little of it.
const committedEvery = 20 * time.Millisecond

// measureSpan measures a peer from a commit after the warm-up until a commit after the measured
// events. Both ends are commits, so the interval of commits does not change the rate.
func (w *scoreBench) measureSpan(ctx context.Context, run *pinnedProcess, group string) (m measuredTurn, err error) {
	begun, err := w.waitCommitted(ctx, run, group, w.Warm)
	if err != nil {
		return m, err
	}
	ended, err := w.waitCommitted(ctx, run, group, begun.events+w.Events)
	if err != nil {
		return m, err
	}
	m.Records, m.Wall, m.CPU = ended.events-begun.events, ended.at.Sub(begun.at), ended.peer.CPU-begun.peer.CPU
	m.Resident = ended.peer.Resident
	m.broker, m.whole = ended.broker.CPU-begun.broker.CPU, m.Records
	return m, nil
}

// spanEnd is one end of a measured span.
type spanEnd struct {
	at           time.Time
	events       int
	peer, broker task.Process
}

func (w *scoreBench) waitCommitted(ctx context.Context, run *pinnedProcess, group string, wanted int) (s spanEnd, err error) {
	tick := time.NewTicker(committedEvery)
	defer tick.Stop()
	last, moved := 0, time.Now()
	for {
		offsets, err := w.committed(ctx, group)
		if err != nil {
			return s, err
		}
		s.at, s.events = time.Now(), 0
		for _, n := range offsets {
			s.events += int(n)
		}
		switch {
		case s.events >= wanted:
			return w.readSpanEnd(s, run)
		case s.events > last:
			last, moved = s.events, s.at
		case time.Since(moved) > stuckAfter:
			return s, fmt.Errorf("it has committed %d events and goes no further: %s", last, run.said())
		}
		select {
		case <-tick.C:
		case <-run.ended:
			return s, fmt.Errorf("it ended after %d events: %s", s.events, run.said())
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}

func (w *scoreBench) readSpanEnd(s spanEnd, run *pinnedProcess) (_ spanEnd, err error) {
	if s.peer, err = task.ReadProcess(run.pid()); err != nil {
		return s, err
	}
	s.broker, err = task.ReadProcess(w.brokerPID())
	return s, err
}

// committed returns the offset that a group has committed for each partition. It does not wait for
// open transactions, because a scorer at work always has one.
func (w *scoreBench) committed(ctx context.Context, group string) (offsets [partitions]int64, err error) {
	topic, all := topicOf(w, inStream), make([]int, partitions)
	for p := range all {
		all[p] = p
	}
	r, err := w.st.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: w.st.names.Group(group), Topics: map[string][]int{topic: all}})
	if err == nil {
		err = r.Error
	}
	if known := kafka.Error(0); errors.As(err, &known) && known.Temporary() {
		return offsets, nil // the group is new, and its coordinator is not ready yet
	}
	if err != nil {
		return offsets, fmt.Errorf("read the progress of group %s: %w", group, err)
	}
	for _, p := range r.Topics[topic] {
		if p.Error != nil {
			return offsets, fmt.Errorf("read the progress of group %s: %w", group, p.Error)
		}
		offsets[p.Partition] = max(0, p.CommittedOffset)
	}
	return offsets, nil
}

// auditWithin is the time in which the outputs of committed inputs must be there. Flink commits the
// offsets just before its outputs.
const auditWithin = 20 * time.Second

// auditPeer reads the committed outputs until there is one for each committed input.
func (w *scoreBench) auditPeer(ctx context.Context, a *outputAudit, group, out string) (err error) {
	if a.done, err = w.committed(ctx, group); err != nil {
		return err
	}
	from, err := w.st.b.Places(ctx, out, broker.Earliest())
	for until := time.Now().Add(auditWithin); err == nil; {
		if from, err = w.st.b.ReadBack(ctx, from, a.output); err != nil || a.isDone() || time.Now().After(until) {
			break
		}
		select {
		case <-time.After(committedEvery):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return err
	}
	a.findLost()
	if a.counts.outputs == 0 {
		return fmt.Errorf("stream %s has no outputs", out)
	}
	return a.readLetters(ctx)
}

// isDone reports whether all committed inputs have an output.
func (a *outputAudit) isDone() bool {
	for p, n := range a.done {
		for offset := range n {
			if !a.seen[p][offset] {
				return false
			}
		}
	}
	return true
}

// measurePeers gives every peer a turn in each round, each time in another order.
func (w *scoreBench) measurePeers(ctx context.Context, o *scoreOutcome) (absent map[string]string, err error) {
	c := &comparison{scoreBench: w}
	if err := w.fillStream(ctx, w.Warm+w.Events+max(slackLeast, int(slack*float64(w.Events)))); err != nil {
		return nil, err
	}
	if err := w.writeModels(); err != nil {
		return nil, err
	}
	all := w.peers(ctx)
	// The broker's Java compiles what runs often, so the first turn is not measured.
	if _, err := w.runPeer(ctx, all[0], c); err != nil {
		return nil, fmt.Errorf("%s: %w", all[0].name, err)
	}
	for round := range w.scorePlan.rounds {
		for i := range all {
			p := all[(i+round)%len(all)]
			if p.why != "" {
				continue
			}
			m, err := w.runPeer(ctx, p, c)
			switch {
			case err != nil && p.ours:
				return nil, fmt.Errorf("%s: %w", p.name, err)
			case err != nil:
				p.why, p.turns = err.Error(), nil // a peer that fails is no failure of ours
			default:
				p.turns = append(p.turns, m)
			}
		}
	}
	c.audit.addCounts(o, c.first)
	return tellPeers(o, all), nil
}

// The figures of peers, as budgets use them.
const (
	figurePeerCPU    = "CPU per event"
	figurePeerBroker = "broker's CPU per event"
	figurePeerMemory = "memory"
	figurePeerRate   = "Tidemill / "      // ratio of rates; the name of the peer follows
	figurePeerTimes  = "CPU / Tidemill, " // ratio of CPU times; the name of the peer follows
)

// tellPeers fills the table. It returns the reasons for missing figures.
func tellPeers(o *scoreOutcome, all []*peer) (absent map[string]string) {
	absent = map[string]string{}
	us := all[0].turns
	for _, p := range all {
		if p.why != "" {
			o.Notes = append(o.Notes, p.name+" was not measured: "+p.why)
			absent[figurePeerRate+p.name] = p.why
			continue
		}
		o.Rows = append(o.Rows, p.turns.row(p.name, p.ours))
		if p != all[0] {
			rate, cpu := medianRatio(us.figures(measuredTurn.rate), p.turns.figures(measuredTurn.rate)), medianRatio(p.turns.figures(cpuOf), us.figures(cpuOf))
			o.Figures[figurePeerRate+p.name], o.Figures[figurePeerTimes+p.name] = rate, cpu
			o.Notes = append(o.Notes, fmt.Sprintf("%s: Tidemill has %.2f times its rate; it takes %.2f times the CPU of Tidemill", p.name, rate, cpu))
		}
	}
	row := o.Rows[0]
	o.Figures[figurePeerCPU], o.Figures[figurePeerBroker], o.Figures[figurePeerMemory] = row.CPU, row.Broker, row.Memory
	return absent
}

func coreList(first, last int) string {
	if last <= first {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}
