package realservers

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

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

// config is what a broker of tests needs besides Kafka's defaults: few
// partitions of internal topics, and no waiting for further group members.
func (n *Node) config(dir string, all []*Node, o KafkaOptions) map[string]string {
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
		// A killed broker may come back only when its session has ended.
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

// render writes properties; a backslash begins an escape there.
func render(c map[string]string) []byte {
	var b bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(c[k], `\`, `\\`))
	}
	return b.Bytes()
}
