package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
)

// parseAddr splits host:port[,host:port…]. An address with a password in it is
// refused and not repeated.
func parseAddr(addr string) ([]string, error) {
	if strings.TrimSpace(addr) == "" {
		return nil, errors.New("read Kafka's address: none is given: say where Kafka is with --kafka or TIDEMILL_KAFKA, as host:port")
	}
	if strings.Contains(addr, "@") {
		return nil, errors.New("read Kafka's address: it holds a user or a password: give host:port alone, the user by itself and the password in a file")
	}
	var seeds []string
	for one := range strings.SplitSeq(addr, ",") {
		one = strings.TrimSpace(one)
		host, port, err := net.SplitHostPort(one)
		if err != nil || host == "" || port == "" || strings.Contains(one, "/") {
			return nil, fmt.Errorf("read Kafka's address %q: it is not host:port: write it like kafka-1:9092", one)
		}
		seeds = append(seeds, one)
	}
	return seeds, nil
}

// shown is what may be printed of the options.
type shown struct {
	Addr     string
	Install  string
	Security Security
}

func (o Options) shown() shown {
	addr := o.Addr
	if strings.Contains(addr, "@") { // a password does not belong there, but may stand there
		addr = "[secret]"
	}
	return shown{Addr: addr, Install: o.Names.Install(), Security: o.Security}
}

// Format prints the options without anything that may be secret, whatever the
// verb.
func (o Options) Format(w fmt.State, _ rune) { fmt.Fprintf(w, "%+v", o.shown()) }

// MarshalJSON is Format for JSON.
func (o Options) MarshalJSON() ([]byte, error) { return json.Marshal(o.shown()) }

// LogValue is Format for slog.
func (o Options) LogValue() slog.Value { return slog.AnyValue(o.shown()) }
