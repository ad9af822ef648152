//go:build slow

package charts_test

import (
	"strings"
	"testing"
)

// Wrong values are refused before anything is installed, and the error names the wrong value.
func TestSchemaRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"image.repository=":                                     "push the image that `make image` builds",
		"image.digest=latest":                                   "/image/digest",
		"kafka.address=":                                        "kafka.address is missing",
		"kafka.address=kafka://k:9092":                          "/kafka/address",
		"kafka.adress=k:9092":                                   "adress",
		"kafka.sasl.mechanism=GSSAPI":                           "/kafka/sasl/mechanism",
		"kafka.sasl.mechanism=PLAIN":                            "/kafka/sasl/user",
		"redis.address=redis":                                   "/redis/address",
		"store.url=bucket":                                      "/store/url",
		"gateway.drainDelay=20s":                                "/gateway/drainDelay",
		"gateway.replicas=0":                                    "/gateway/replicas",
		"gateway.ingress.enabled=true":                          "/gateway/ingress/host",
		"gateway.agentsAt=tidemill.example":                     "/gateway/agentsAt",
		"gateway.tls.secret=tls":                                "gateway.agentsAt is missing",
		"dispatcher.replica=2":                                  "replica",
		"config.version=2":                                      "/config/version",
		"config.scorer.x.from=a":                                "scorer",
		"config.scorers.Intents.from=a":                         "Intents",
		"functions.knative=maybe":                               "/functions/knative",
		"functions.timeoutSeconds=0":                            "/functions/timeoutSeconds",
		"pods.user=0":                                           "/pods/user",
		"access.tokens.crm.role=read":                           "/access/tokens/crm",
		"access.tokens.crm.hash=tm_secret":                      "/access/tokens/crm",
		"log=loud":                                              "/log",
		"metrics.prometheusRule.failureRatio=2":                 "/metrics/prometheusRule/failureRatio",
		"configFile=version: 1,config.streams.a.x=":             "put all of it into one of them",
		"configFile=]":                                          "configFile is no YAML",
		"metrics.podMonitor.enabled=true,access.generate=false": "tokenSecret is missing",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			out, errs, err := runHelm(t, "template", "tidemill", chart, "--kube-version", kube, "-f", "testdata/minimal.values.yaml", "--set", set)
			if err == nil {
				t.Fatalf("it is rendered\n%s", out)
			}
			if !strings.Contains(errs, want) {
				t.Errorf("it is refused without %q:\n%s", want, errs)
			}
		})
	}
}

// One error lists all missing values.
func TestWhatIsMissing(t *testing.T) {
	_, errs, err := runHelm(t, "template", "tidemill", chart, "--kube-version", kube, "--set", "access.generate=false")
	if err == nil {
		t.Fatal("it is rendered without any values")
	}
	for _, want := range []string{"image.repository is", "kafka.address is", "redis.address is", "store.url is", "nobody could do anything"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not told:\n%s", want, errs)
		}
	}
}
