package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

const (
	envKafka = "TIDEMILL_KAFKA"
	envRedis = "TIDEMILL_REDIS"
	envStore = "TIDEMILL_STORE"
)

// Addresses are the addresses of the servers. Addresses differ between laptop and cluster, so the
// file never contains them. An empty address was not given.
type Addresses struct {
	Kafka string // host:port[,host:port…]
	Redis string // host:port[,host:port…]
	Store string // URL of the object store, such as s3://bucket
}

// ReadAddresses takes each address from its flag, else from the environment. No address may
// contain a password. One error reports everything that is wrong.
func ReadAddresses(flags Addresses, getenv func(string) string) (Addresses, error) {
	var a Addresses
	var errs [3]error
	a.Kafka, errs[0] = readAddress("--kafka", flags.Kafka, envKafka, getenv, checkServers)
	a.Redis, errs[1] = readAddress("--redis", flags.Redis, envRedis, getenv, checkRedis)
	a.Store, errs[2] = readAddress("--store", flags.Store, envStore, getenv, checkStore)
	if err := errors.Join(errs[:]...); err != nil {
		return Addresses{}, err
	}
	return a, nil
}

func readAddress(flag, given, env string, getenv func(string) string, check func(string) (string, error)) (string, error) {
	from, text := flag, strings.TrimSpace(given)
	if text == "" {
		from, text = env, strings.TrimSpace(getenv(env))
	}
	if text == "" {
		return "", nil
	}
	address, err := check(text)
	if err != nil {
		return "", fmt.Errorf("%s %w", from, err)
	}
	return address, nil
}

// errUser repeats nothing of the address.
var errUser = errors.New("holds a user or a password; give only the address, and put user and password into separate files")

// checkRedis refuses several servers, because only one would be used.
func checkRedis(s string) (string, error) {
	if strings.Contains(s, ",") {
		return "", errors.New("names several servers, and only one can be used: give an address that always leads to the primary")
	}
	return checkServers(s)
}

func checkServers(s string) (string, error) {
	if strings.Contains(s, "@") || secretIn(s) != "" {
		return "", errUser
	}
	if scheme, _, ok := strings.Cut(s, "://"); ok {
		return "", fmt.Errorf("begins with %s; give host:port[,host:port] without a scheme", show(scheme+"://"))
	}
	servers := strings.Split(s, ",")
	for i, server := range servers {
		servers[i] = strings.TrimSpace(server)
		if err := checkServer(servers[i]); err != nil {
			return "", err
		}
	}
	return strings.Join(servers, ","), nil
}

var hostName = shaped(253, `^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

func checkServer(s string) error {
	if s == "" {
		return errors.New("has an empty address between commas; give host:port[,host:port]")
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("has %s, which is not host:port; write it like kafka-0:9092", show(s))
	}
	if !hostName.fits(host) && net.ParseIP(host) == nil {
		return fmt.Errorf("has %s, whose host is neither a name nor an IP address", show(s))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("has %s, whose port is not a number from 1 to 65535", show(s))
	}
	return nil
}

func checkStore(s string) (string, error) {
	if secretIn(s) != "" {
		return "", errUser
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		return "", fmt.Errorf("is %s, which is not a URL; write it like s3://bucket?region=eu-1 or file:///folder", show(s))
	}
	for _, values := range u.Query() {
		for _, v := range values {
			if secretIn(v) != "" {
				return "", errUser
			}
		}
	}
	return s, nil
}
