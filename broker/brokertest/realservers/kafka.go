package realservers

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaOptions describe the Kafka to start. The zero value is one broker.
type KafkaOptions struct {
	// Brokers is the number of brokers. With three, internal topics are replicated and
	// two replicas must be in sync.
	Brokers int
	// Host is the address of this machine on which brokers listen and under which clients
	// find them; empty is loopback. The plain listener requires no login: only the test's
	// own clients should be able to reach this address.
	Host string
	// Secure adds listeners with TLS and SASL to the plain one.
	Secure bool
	// Users are names and passwords that may authenticate by PLAIN, SCRAM-SHA-256 and
	// SCRAM-SHA-512. Secure needs at least one.
	Users map[string]string
	// Config adds lines to server.properties and overrides ours.
	Config map[string]string
	// Java are the options of the brokers' Java. The default is a small heap and one compiler,
	// with which a broker starts fast; measurements need others.
	Java []string
}

// Kafka is a running Apache Kafka.
type Kafka struct {
	dir   string
	certs *certs // nil unless secure
	ports *ports
	nodes []*Node
}

// StartKafka starts Apache Kafka on free ports and waits until every broker answers. The first call
// on a machine downloads Kafka.
func StartKafka(ctx context.Context, o KafkaOptions) (*Kafka, error) {
	if o.Brokers < 1 {
		o.Brokers = 1
	}
	if o.Host == "" {
		o.Host = loopback
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
	jars, err := kafkaJars(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tidemill-kafka-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for kafka: %w", err)
	}
	k := &Kafka{dir: dir}
	if err := k.start(ctx, jars, o); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (o KafkaOptions) check() error {
	if o.Secure && len(o.Users) == 0 {
		return errors.New("option Secure needs Users: without them no client can log in")
	}
	for name, password := range o.Users {
		if strings.ContainsAny(name+password, `=;"\ `) {
			return fmt.Errorf("user %q: no name or password with = ; \" \\ or a blank, which PLAIN's configuration would have to escape", name)
		}
	}
	return nil
}

func (k *Kafka) start(ctx context.Context, jars string, o KafkaOptions) (err error) {
	if o.Secure {
		if k.certs, err = newCerts(k.dir, o.Host); err != nil {
			return err
		}
	}
	if k.ports, err = takePorts(o.Host, listeners(o.Secure)*o.Brokers); err != nil {
		return err
	}
	if k.nodes, err = newNodes(k.dir, jars, k.ports.all, o); err != nil {
		return err
	}
	for _, n := range k.nodes {
		if err := n.formatStorage(ctx, jars); err != nil {
			return err
		}
	}
	if err := k.Restart(ctx); err != nil {
		return err
	}
	if !o.Secure {
		return nil // the plain listener requires no login
	}
	return k.createUsers(ctx, o.Users)
}

// Addr returns the addresses of the plain listeners, comma-separated.
func (k *Kafka) Addr() string { return k.addr(plain) }

// MutualTLSAddr returns the addresses that require a client certificate; see ClientTLS.
func (k *Kafka) MutualTLSAddr() string { return k.addr(mtls) }

// SASLAddr returns the addresses where users log in without TLS.
func (k *Kafka) SASLAddr() string { return k.addr(saslPlain) }

// SASLTLSAddr returns the addresses where users log in over TLS, without a client
// certificate.
func (k *Kafka) SASLTLSAddr() string { return k.addr(saslTLS) }

// ClientTLS trusts the brokers and presents a certificate that they trust; nil without
// Secure.
func (k *Kafka) ClientTLS() *tls.Config {
	if k.certs == nil {
		return nil
	}
	return k.certs.client()
}

// ClientFiles returns the PEM files that match ClientTLS: the CA, and a certificate with
// its key in one file.
func (k *Kafka) ClientFiles() (ca, pair string) {
	return filepath.Join(k.dir, caPEM), filepath.Join(k.dir, clientPEM)
}

// Nodes returns the brokers, so that a test can stop one of them.
func (k *Kafka) Nodes() []*Node { return k.nodes }

// Restart stops the running brokers, starts every broker again on its ports and folder, and waits
// until all brokers answer.
func (k *Kafka) Restart(ctx context.Context) error {
	if err := k.Stop(); err != nil {
		return err
	}
	for _, n := range k.nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return k.Ready(ctx)
}

// Ready waits until each running broker knows all running brokers.
func (k *Kafka) Ready(ctx context.Context) error {
	want := 0
	for _, n := range k.nodes {
		if n.proc.running() {
			want++
		}
	}
	for _, n := range k.nodes {
		if !n.proc.running() {
			continue
		}
		if err := n.proc.waitReady(ctx, func(ctx context.Context) error { return n.checkBrokers(ctx, want) }); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops every broker in order, and begins with the last started broker.
func (k *Kafka) Stop() error { return k.each((*Node).Stop) }

// Kill ends every broker with SIGKILL.
func (k *Kafka) Kill() error { return k.each((*Node).Kill) }

// Close ends every broker and removes its files.
func (k *Kafka) Close() error { return errors.Join(k.Kill(), k.ports.release(), os.RemoveAll(k.dir)) }

func (k *Kafka) each(do func(*Node) error) error {
	var errs []error
	for i := range k.nodes {
		errs = append(errs, do(k.nodes[len(k.nodes)-1-i]))
	}
	return errors.Join(errs...)
}

func (k *Kafka) addr(l int) string {
	var all []string
	for _, n := range k.nodes {
		if l < len(n.ports) {
			all = append(all, at(n.host, n.ports[l]))
		}
	}
	return strings.Join(all, ",")
}

// checkBrokers returns nil if the broker sees the wanted number of brokers.
func (n *Node) checkBrokers(ctx context.Context, want int) error {
	t := &kafka.Transport{DialTimeout: time.Second}
	defer t.CloseIdleConnections()
	c := &kafka.Client{Addr: n.kafkaAddr(), Transport: t, Timeout: time.Second}
	m, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	if err != nil {
		return err
	}
	if len(m.Brokers) != want {
		return fmt.Errorf("it knows %d of %d brokers", len(m.Brokers), want)
	}
	return nil
}

// The listeners of a broker, which index its ports.
const (
	plain = iota
	controller
	mtls
	saslPlain
	saslTLS
)

func listeners(secure bool) int {
	if secure {
		return saslTLS + 1
	}
	return controller + 1
}

var names = [...]string{plain: "PLAIN", controller: "CONTROLLER", mtls: "MTLS", saslPlain: "SASLPLAIN", saslTLS: "SASLTLS"}

var protocols = [...]string{plain: "PLAINTEXT", controller: "PLAINTEXT", mtls: "SSL", saslPlain: "SASL_PLAINTEXT", saslTLS: "SASL_SSL"}

// brokerConfig returns the settings of a test broker that differ from Kafka's defaults: few
// partitions of internal topics, and no wait for further group members.
func (n *Node) brokerConfig(dir string, all []*Node, o KafkaOptions) map[string]string {
	replicas := strconv.Itoa(min(3, len(all)))
	inSync := strconv.Itoa(min(2, len(all)))
	c := map[string]string{
		"process.roles":              "broker,controller",
		"node.id":                    strconv.Itoa(n.id),
		"log.dirs":                   filepath.Join(n.dir, "data"),
		"controller.listener.names":  names[controller],
		"inter.broker.listener.name": names[plain],
		"controller.quorum.voters":   voters(all),
		"auto.create.topics.enable":  "false",
		// A killed broker can come back only after its session has ended.
		"broker.session.timeout.ms":                        "2000",
		"broker.heartbeat.interval.ms":                     "250",
		"group.initial.rebalance.delay.ms":                 "0",
		"group.min.session.timeout.ms":                     "500",
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              inSync,
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 replicas,
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    inSync,
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            inSync,
	}
	n.listen(c)
	if o.Secure {
		secure(c, dir, o.Users)
	}
	maps.Copy(c, o.Config)
	return c
}

func voters(all []*Node) string {
	var v []string
	for _, n := range all {
		v = append(v, fmt.Sprintf("%d@%s", n.id, at(n.host, n.ports[controller])))
	}
	return strings.Join(v, ",")
}

func (n *Node) listen(c map[string]string) {
	var listen, advertise, protocol []string
	for l, port := range n.ports {
		addr := names[l] + "://" + at(n.host, port)
		listen = append(listen, addr)
		if l != controller {
			advertise = append(advertise, addr)
		}
		protocol = append(protocol, names[l]+":"+protocols[l])
	}
	c["listeners"] = strings.Join(listen, ",")
	c["advertised.listeners"] = strings.Join(advertise, ",")
	c["listener.security.protocol.map"] = strings.Join(protocol, ",")
}

func secure(c map[string]string, dir string, users map[string]string) {
	c["ssl.keystore.type"], c["ssl.keystore.location"] = "PEM", filepath.Join(dir, brokerPEM)
	c["ssl.truststore.type"], c["ssl.truststore.location"] = "PEM", filepath.Join(dir, caPEM)
	c["listener.name.mtls.ssl.client.auth"] = "required"
	c["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
	login := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, name := range slices.Sorted(maps.Keys(users)) {
		login += fmt.Sprintf(" user_%s=%q", name, users[name])
	}
	const scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	for _, l := range []string{"saslplain", "sasltls"} {
		c["listener.name."+l+".plain.sasl.jaas.config"] = login + ";"
		c["listener.name."+l+".scram-sha-256.sasl.jaas.config"] = scram
		c["listener.name."+l+".scram-sha-512.sasl.jaas.config"] = scram
	}
}

// writeProperties writes properties, in which a backslash begins an escape.
func writeProperties(c map[string]string) []byte {
	var b bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(c[k], `\`, `\\`))
	}
	return b.Bytes()
}
