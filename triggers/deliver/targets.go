package deliver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/network"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
)

// senderOf returns the sender of a trigger.
func (d *Dispatcher) senderOf(trigger string) *sender {
	if s := (*d.senders.Load())[trigger]; s != nil {
		return s
	}
	return d.orphans
}

// targets returns where each trigger's events go. A trigger that has not changed keeps
// its connections. Called with the lock held.
func (d *Dispatcher) targets(c *config.Config) (map[string]*target, error) {
	known := *d.senders.Load()
	all := make(map[string]*target, len(c.Triggers))
	for _, t := range c.Triggers {
		if s := known[t.Name]; s != nil && reflect.DeepEqual(s.to.Load().trigger, t) {
			all[t.Name] = s.to.Load()
			continue
		}
		to, err := newSubscriber(t, subscriberOptions{Resolve: d.o.Resolve, Bearer: d.o.Bearer, Version: d.o.Version, Tracer: d.o.Tracer, Network: d.o.Network, Takers: d.replies.takers.Load})
		if err != nil {
			return nil, err
		}
		all[t.Name] = &target{subscriber: to, trigger: t}
	}
	return all, nil
}

// aim gives each trigger its target and returns the senders of removed triggers. Called
// with the lock held.
func (d *Dispatcher) aim(targets map[string]*target) []*sender {
	known := *d.senders.Load()
	next := make(map[string]*sender, len(targets))
	for name, to := range targets {
		s := known[name]
		if s == nil {
			s = newSender(d, name, to)
			s.latency = d.counts.latencyOf(name)
		} else if s.to.Load() != to {
			s.aim(to)
		}
		next[name] = s
	}
	d.senders.Store(&next)
	var gone []*sender
	for name, s := range maps.All(known) {
		if next[name] == nil {
			gone = append(gone, s)
		}
	}
	return gone
}

// dismiss ends the senders of removed triggers. Their waiting items become dead letters.
func (d *Dispatcher) dismiss(gone []*sender) {
	for _, s := range gone {
		for _, i := range s.stopSending() {
			d.send(i)
		}
		if to := s.to.Load(); to.subscriber != nil {
			to.subscriber.close()
		}
		d.counts.forget(s.name)
	}
}

// requestShares divides the triggers' rates among the dispatchers: each gets the same share of a
// rate as it has of the partitions.
func (d *Dispatcher) requestShares() { notify(d.repair) }

// computeShares computes the shares again. Called with the lock held.
func (d *Dispatcher) computeShares() {
	ours, all := map[string]int{}, map[string]int{}
	for stream, p := range d.plans {
		l := d.pipelines[stream]
		if l == nil {
			continue
		}
		n := len(l.assignmentsNow())
		for _, name := range p.triggers {
			ours[name] += n
			all[name] += max(l.partitionsNow(), n)
		}
	}
	for name, s := range *d.senders.Load() {
		if all[name] > 0 && ours[name] > 0 {
			s.setShare(float64(ours[name]) / float64(all[name]))
		}
	}
}

// ErrNotYet is wrapped by a resolver's error if a subscriber does not exist yet: a
// service that is getting ready or that has not been created. Its trigger waits as if it
// were paused, until the resolver finds the subscriber. The attempt does not count, so an
// event becomes a dead letter no earlier than during a pause.
var ErrNotYet = errors.New("not there yet")

// expectEvery is how often the resolver is asked for missing subscribers. The resolver answers from
// memory.
const expectEvery = 200 * time.Millisecond

// missingTargets is the set of triggers whose subscriber does not exist yet, with the reason.
type missingTargets struct {
	mu      sync.Mutex
	why     map[string]error
	changed chan struct{} // signalled when a trigger is added, or when a circuit opens or closes
}

func newMissingTargets() missingTargets {
	return missingTargets{why: map[string]error{}, changed: make(chan struct{}, 1)}
}

func (m *missingTargets) has(trigger string) bool { return m.reasonFor(trigger) != nil }

// reasonFor returns the reason why a trigger waits; nil if the trigger does not wait.
func (m *missingTargets) reasonFor(trigger string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why[trigger]
}

// setReason stores the resolver's error and reports whether the trigger starts or stops waiting.
func (m *missingTargets) setReason(trigger string, why error) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, before := m.why[trigger]
	if why == nil {
		delete(m.why, trigger)
	} else {
		m.why[trigger] = why
	}
	return before != (why != nil)
}

func (m *missingTargets) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]string, 0, len(m.why))
	for name := range m.why {
		all = append(all, name)
	}
	return all
}

// targetMissing pauses a trigger whose subscriber does not exist yet.
func (d *Dispatcher) targetMissing(trigger string, why error) {
	if d.missing.setReason(trigger, why) {
		d.o.Logger.Warn("dispatcher: a subscriber is not found; its trigger waits", "trigger", trigger, "reason", why)
		notify(d.missing.changed)
	}
}

// retryMissing looks for missing subscribers until the context ends. The search for a
// trigger's subscriber begins when an attempt has found it missing.
func (d *Dispatcher) retryMissing(ctx context.Context) {
	t := time.NewTimer(expectEvery)
	defer t.Stop()
	for {
		t.Reset(expectEvery)
		select {
		case <-d.missing.changed:
			d.applyMissing()
		case <-t.C:
			if d.findAgain(ctx) {
				d.applyMissing()
			}
		case <-ctx.Done():
			return
		}
		if len(d.missing.names()) > 0 {
			continue
		}
		select {
		case <-d.missing.changed:
			d.applyMissing()
		case <-ctx.Done():
			return
		}
	}
}

// findAgain reports whether a missing subscriber exists now, or is no longer wanted.
func (d *Dispatcher) findAgain(ctx context.Context) (found bool) {
	for _, name := range d.missing.names() {
		s := (*d.senders.Load())[name]
		if s == nil { // the config no longer has the trigger
			found = d.missing.setReason(name, nil) || found
			continue
		}
		_, err := s.to.Load().subscriber.where(ctx)
		if errors.Is(err, ErrNotYet) {
			d.missing.setReason(name, err) // the reason may have changed
			continue
		}
		d.o.Logger.Info("dispatcher: the subscriber of a trigger is found", "trigger", name)
		found = d.missing.setReason(name, nil) || found
	}
	return found
}

// applyMissing applies the present set of missing subscribers everywhere.
func (d *Dispatcher) applyMissing() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applyRanges()
	for _, l := range d.pipelines {
		l.apply(d.settingsOf(l.stream.Name), d.retentionOf(l))
	}
}

// passed reports whether an item's event is older than the forgetting of its subject or its partitionkey.
// Such an event is never delivered, however long it has waited, and no replay brings it back. The check is made
// right before each attempt, so no search through parked events is needed.
//
// The answer may need a record of the log of commands. If that cannot be read, the event waits.
func (d *Dispatcher) passed(i *item) (passed bool, err error) {
	if i.lost != "" {
		return false, nil // there is no event to check; its dead letter says so
	}
	home := i.part.home
	at := broker.Position{Stream: i.part.stream, Partition: i.part.number, Offset: i.ref.source}
	return d.commands.EventPassed(home.ctx, &i.event.view, at, home.pipeline)
}

// Topic returns the id that the stream's topic had at an offset; empty if it is not known.
func (pl *pipeline) Topic(at broker.Position) string {
	select {
	case <-pl.joined:
		return pl.c.Topic(at)
	case <-pl.life.Done():
		return ""
	}
}

// endForgotten ends an item without a delivery and without a dead letter, because a dead letter
// would keep the event for ever. The commands record that its key was forgotten.
func (d *Dispatcher) endForgotten(i *item) {
	d.o.Logger.Info("dispatcher: the key is forgotten; its event is not delivered", "trigger", i.queue.trigger.name,
		"stream", i.part.stream, "partition", i.part.number, "offset", i.ref.source, "event", i.event.view.ID)
	if err := d.resolve(i, deadletters.Receipt{Outcome: deadletters.DroppedByAct, Reason: "the key is forgotten"}); err != nil {
		return // the new owner of its partition ends it
	}
	i.part.home.apply(func(p *partition, now millis) { p.reportEnd(i, now) })
}

const (
	connectWithin = 10 * time.Second
	idleFor       = time.Minute // shorter than most servers and load balancers allow
	pingAfter     = 15 * time.Second
)

// connections belong to one trigger, so that neither its credentials nor its slowness
// affect another.
type connections struct {
	trust trust
	most  int // requests at once
	over  network.Network

	mu        sync.Mutex
	made      pemFiles
	transport *http.Transport
}

// current returns the transport for the present content of the files. If a file has changed, new
// connections are made, because an open connection may be to a server that is no longer trusted.
func (w *connections) current() (*http.Transport, error) {
	p, err := w.trust.read()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil && w.made == p {
		return w.transport, nil
	}
	fresh, err := newTransport(p, w.most, w.over)
	if err != nil {
		return nil, err
	}
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
	w.transport, w.made = fresh, p
	return fresh, nil
}

// close closes idle connections.
func (w *connections) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
}

func newTransport(p pemFiles, most int, over network.Network) (*http.Transport, error) {
	secure, err := p.config()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            over.Dialer(net.Dialer{Timeout: connectWithin, KeepAlive: pingAfter}),
		TLSClientConfig:        secure,
		TLSHandshakeTimeout:    connectWithin,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: connectWithin}, // otherwise one dead connection would block all its requests
		MaxIdleConnsPerHost:    max(most, 1),
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxReply,
		DisableCompression:     true, // replies are read as they come, so that the size limit also limits memory
	}, nil
}

// proxy returns the proxy of the environment. Its own error would show the variable,
// which may contain a password.
func proxy(r *http.Request) (*url.URL, error) {
	to, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("the proxy that HTTP_PROXY or HTTPS_PROXY names is no URL")
	}
	return to, nil
}

// trust is the files for a subscriber's TLS connections: its CA and our certificate.
// All may be nil.
type trust struct{ ca, cert, key *secretFile }

func newTrust(c config.Credentials) trust {
	return trust{ca: newSecretFile("caFile", c.CAFile), cert: newSecretFile("certFile", c.CertFile), key: newSecretFile("keyFile", c.KeyFile)}
}

// pemFiles is the content of these files.
type pemFiles struct{ ca, cert, key string }

func (t trust) read() (p pemFiles, err error) {
	for _, f := range [...]struct {
		file *secretFile
		to   *string
	}{{t.ca, &p.ca}, {t.cert, &p.cert}, {t.key, &p.key}} {
		if f.file == nil {
			continue
		}
		if *f.to, err = f.file.get(); err != nil {
			return pemFiles{}, err
		}
	}
	return p, nil
}

// config returns Go's default if no file is set.
func (p pemFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.ca != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(p.ca)) {
			return nil, errors.New("read the trigger's caFile: it holds no certificate in PEM: give the CA that signed the subscriber's certificate")
		}
	}
	if p.cert != "" {
		pair, err := tls.X509KeyPair([]byte(p.cert), []byte(p.key))
		if err != nil {
			return nil, fmt.Errorf("read the trigger's certFile and keyFile: %w: give a certificate and its key in PEM", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
