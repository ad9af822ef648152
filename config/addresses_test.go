package config

import (
	"strings"
	"testing"
)

func env(pairs ...string) func(string) string {
	return func(key string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == key {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestReadAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		flags  Addresses
		getenv func(string) string
		want   Addresses
	}{
		"none":      {Addresses{}, env(), Addresses{}},
		"from env":  {Addresses{}, env(envKafka, "k:9092", envRedis, "r:6379", envStore, "s3://b"), Addresses{"k:9092", "r:6379", "s3://b"}},
		"flag wins": {Addresses{Kafka: "f:1"}, env(envKafka, "k:9092", envRedis, "r:6379"), Addresses{"f:1", "r:6379", ""}},
		"several":   {Addresses{Kafka: " a:1, b-0.kafka.svc:2,10.0.0.1:3,[::1]:4 "}, env(), Addresses{"a:1,b-0.kafka.svc:2,10.0.0.1:3,[::1]:4", "", ""}},
		"stores":    {Addresses{Store: "s3://b?region=eu&endpoint=http://minio:9000"}, env(), Addresses{Store: "s3://b?region=eu&endpoint=http://minio:9000"}},
		"folder":    {Addresses{Store: "file:///srv/store"}, env(), Addresses{Store: "file:///srv/store"}},
		"blank env": {Addresses{}, env(envKafka, "  \n"), Addresses{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadAddresses(c.flags, c.getenv)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// Of several Redis servers only the first would be used.
func TestReadAddressesRefusesSeveralRedis(t *testing.T) {
	if _, err := ReadAddresses(Addresses{Redis: "a:1,b:2"}, env()); err == nil || !strings.Contains(err.Error(), "--redis names several servers") {
		t.Error(err)
	}
}

func TestReadAddressesRefuses(t *testing.T) {
	for kafka, want := range map[string]string{
		"kafka":               "is not host:port",
		"kafka:":              "port is not a number",
		"kafka:x":             "port is not a number",
		"kafka:0":             "port is not a number",
		"kafka:65536":         "port is not a number",
		":9092":               "neither a name nor an IP",
		"a b:9092":            "neither a name nor an IP",
		"::1:9092":            "is not host:port",
		"a:1,,b:2":            "empty address",
		"a:1,":                "empty address",
		"kafka://a:1":         "without a scheme",
		"me:hunter2@a:1":      "user or a password",
		"redis://:hunter2@a":  "user or a password",
		"a:1,u:hun/ter2@b:2":  "user or a password",
		"PLAIN://u:h/unter2@": "user or a password",
	} {
		for from, read := range map[string]func() (Addresses, error){
			"--kafka": func() (Addresses, error) { return ReadAddresses(Addresses{Kafka: kafka}, env()) },
			envKafka:  func() (Addresses, error) { return ReadAddresses(Addresses{}, env(envKafka, kafka)) },
		} {
			_, err := read()
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), from+" ") {
				t.Errorf("%s %q: %v, want %q", from, kafka, err, want)
				continue
			}
			if strings.Contains(err.Error(), "ter2") {
				t.Errorf("%q: the error tells the password: %v", kafka, err)
			}
		}
	}
}

func TestReadAddressesRefusesStores(t *testing.T) {
	for store, want := range map[string]string{
		"bucket":                                "not a URL",
		"s3:bucket":                             "not a URL",
		"s3://me:hunter2@b":                     "user or a password",
		"s3://b?x=redis://:hunter2@h":           "user or a password",
		"s3://b?e=http%3A%2F%2Fu%3Ahunter2%40h": "user or a password",
	} {
		_, err := ReadAddresses(Addresses{Store: store}, env())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), hidden) {
			t.Errorf("%q: %v, want %q", store, err, want)
		}
	}
}

func TestReadAddressesTellsAll(t *testing.T) {
	_, err := ReadAddresses(Addresses{Kafka: "a", Redis: "b", Store: "c"}, env())
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v", err)
	}
}
