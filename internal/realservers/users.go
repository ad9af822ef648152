package realservers

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// iterations is the least that Kafka takes.
const iterations = 4096

// enroll gives the users their SCRAM credentials and waits until every broker
// lets them in; they outlive restarts.
func (k *Kafka) enroll(ctx context.Context, users map[string]string) error {
	for mechanism, h := range map[kafka.ScramMechanism]func() hash.Hash{
		kafka.ScramMechanismSha256: sha256.New, kafka.ScramMechanismSha512: sha512.New} {
		if err := k.enrollBy(ctx, mechanism, h, users); err != nil {
			return fmt.Errorf("enroll users: %w", err)
		}
	}
	for _, n := range k.nodes {
		if err := n.proc.until(ctx, func(ctx context.Context) error { return n.letsIn(ctx, users) }); err != nil {
			return err
		}
	}
	return nil
}

// enrollBy goes by one mechanism: Kafka takes a user once in a request.
func (k *Kafka) enrollBy(ctx context.Context, m kafka.ScramMechanism, h func() hash.Hash, users map[string]string) error {
	req := &kafka.AlterUserScramCredentialsRequest{}
	for name, password := range users {
		u, err := credential(name, password, m, h)
		if err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
		req.Upsertions = append(req.Upsertions, u)
	}
	t := &kafka.Transport{}
	defer t.CloseIdleConnections()
	r, err := (&kafka.Client{Addr: k.nodes[0].kafkaAddr(), Transport: t}).AlterUserScramCredentials(ctx, req)
	if err != nil {
		return err
	}
	for _, u := range r.Results {
		if u.Error != nil {
			return fmt.Errorf("user %s: %w", u.User, u.Error)
		}
	}
	return nil
}

func credential(name, password string, m kafka.ScramMechanism, h func() hash.Hash) (kafka.UserScramCredentialsUpsertion, error) {
	salt := []byte(rand.Text())
	salted, err := pbkdf2.Key(h, password, salt, iterations, h().Size())
	return kafka.UserScramCredentialsUpsertion{Name: name, Mechanism: m, Iterations: iterations,
		Salt: salt, SaltedPassword: salted}, err
}

// letsIn is nil if each user can log in by SCRAM. A broker that can describe its
// users may not have told those who let them in.
func (n *Node) letsIn(ctx context.Context, users map[string]string) error {
	for name, password := range users {
		for _, hash := range []scram.Algorithm{scram.SHA256, scram.SHA512} {
			m, err := scram.Mechanism(hash, name, password)
			if err == nil {
				err = n.login(ctx, m)
			}
			if err != nil {
				return fmt.Errorf("log in as %s: %w", name, err)
			}
		}
	}
	return nil
}

func (n *Node) login(ctx context.Context, m sasl.Mechanism) error {
	t := &kafka.Transport{SASL: m}
	defer t.CloseIdleConnections()
	at := kafka.TCP(at(n.host, n.ports[saslPlain]))
	_, err := (&kafka.Client{Addr: at, Transport: t}).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	return err
}
