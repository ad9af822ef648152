package realservers

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"

	"github.com/segmentio/kafka-go"
)

// iterations is the least that Kafka takes.
const iterations = 4096

// enroll gives the users their SCRAM credentials and waits until every broker
// has them; they outlive restarts.
func (k *Kafka) enroll(ctx context.Context, users map[string]string) error {
	if len(users) == 0 {
		return nil
	}
	for mechanism, h := range map[kafka.ScramMechanism]func() hash.Hash{
		kafka.ScramMechanismSha256: sha256.New, kafka.ScramMechanismSha512: sha512.New} {
		if err := k.enrollBy(ctx, mechanism, h, users); err != nil {
			return fmt.Errorf("enroll users: %w", err)
		}
	}
	for _, n := range k.nodes {
		if err := n.proc.until(ctx, func(ctx context.Context) error { return n.knowsUsers(ctx, users) }); err != nil {
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

func (n *Node) knowsUsers(ctx context.Context, users map[string]string) error {
	req := &kafka.DescribeUserScramCredentialsRequest{}
	for name := range users {
		req.Users = append(req.Users, kafka.UserScramCredentialsUser{Name: name})
	}
	t := &kafka.Transport{}
	defer t.CloseIdleConnections()
	r, err := (&kafka.Client{Addr: n.kafkaAddr(), Transport: t}).DescribeUserScramCredentials(ctx, req)
	if err != nil {
		return err
	}
	for _, u := range r.Results {
		if len(u.CredentialInfos) < 2 {
			return errors.Join(fmt.Errorf("it does not know user %s", u.User), u.Error)
		}
	}
	return nil
}
