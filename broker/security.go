package broker

import (
	"errors"
	"fmt"
)

// The SASL mechanisms that Security.Mechanism may name.
const (
	mechanismPlain    = "PLAIN"
	mechanismScram256 = "SCRAM-SHA-256"
	mechanismScram512 = "SCRAM-SHA-512"
)

// Security is how the broker reaches Kafka: TLS with or without a client
// certificate, and SASL PLAIN or SCRAM. It names files and holds no secret, so
// printing it shows none. Every new connection reads the files again: a rotated
// password or certificate needs no restart.
type Security struct {
	TLS          bool   // speak TLS; implied by none of the fields below
	CAFile       string // PEM with the CAs to trust; empty for the system's
	CertFile     string // PEM with our certificate, where Kafka asks for one
	KeyFile      string // PEM with the certificate's key
	ServerName   string // name in Kafka's certificate; empty for the host dialed
	Mechanism    string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty for no SASL
	User         string
	PasswordFile string
}

// check says which fields do not go together. It reads no file.
func (s Security) check() error {
	if err := s.checkTLS(); err != nil {
		return err
	}
	return s.checkSASL()
}

func (s Security) checkTLS() error {
	if !s.TLS && (s.CAFile != "" || s.CertFile != "" || s.KeyFile != "" || s.ServerName != "") {
		return errors.New("check Kafka's security: a CA, a certificate or a server name is given, but TLS is off: turn TLS on (--kafka-tls)")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return errors.New("check Kafka's security: a client certificate needs both its file and its key's file: give the missing one")
	}
	return nil
}

func (s Security) checkSASL() error {
	switch s.Mechanism {
	case "":
		if s.User != "" || s.PasswordFile != "" {
			return fmt.Errorf("check Kafka's security: a user or a password file is given, but no SASL mechanism: name %s, %s or %s",
				mechanismScram512, mechanismScram256, mechanismPlain)
		}
		return nil
	case mechanismPlain, mechanismScram256, mechanismScram512:
	default:
		return fmt.Errorf("check Kafka's security: SASL mechanism %q is not known: name %s, %s or %s",
			s.Mechanism, mechanismScram512, mechanismScram256, mechanismPlain)
	}
	if s.User == "" || s.PasswordFile == "" {
		return fmt.Errorf("check Kafka's security: %s needs a user and a password file: give both", s.Mechanism)
	}
	return nil
}
