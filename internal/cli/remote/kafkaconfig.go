package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/platform"
)

func kafkaConfigCommand() command.Command {
	return command.Command{
		Name:    "kafka-config",
		Summary: "print how a program connects to the Kafka of tidemill up",
		About: `It prints the address, the user and the password of the embedded Kafka, in three forms.
--for chooses one, with nothing around it:

  kcat   for kcat -F FILE, and for every client that is built on librdkafka
  java   a properties file of Java clients and of Kafka's own tools
  env    variables for commands and processes of tidemill, with the password's file

The password opens all data and can start runs. Give it to programs in a file: other
users of the machine can read the arguments of a process. Commands in the folder of
tidemill up need none of this.`,
		Examples: []command.Example{
			{"tidemill kafka-config", "all three"},
			{"tidemill kafka-config --for java", "as a properties file"},
			{"tidemill kafka-config -o json", "for a script"},
		},
		Make: func() command.Program { return &kafkaConfig{} },
	}
}

type kafkaConfig struct{ data, form, output string }

func (k *kafkaConfig) Flags(f *command.FlagSet) {
	k.data = connect.DataFolder
	f.Text(&k.data, "data", "", "FOLDER", "data folder of tidemill up")
	f.FromEnv("data", "TIDEMILL_DATA")
	f.Text(&k.form, "for", "", "FORM", "kcat, java or env")
	f.Format(&k.output, "text or json")
}

func (k *kafkaConfig) Accept(positional []string) error {
	if k.form != "" && !slices.ContainsFunc(kafkaForms(), func(f kafkaForm) bool { return f.name == k.form }) {
		return command.Usagef("--for %q: give kcat, java or env", k.form)
	}
	if k.form != "" && k.output == "json" {
		return command.Usagef("--for and -o json are both given: JSON has all forms; leave one out")
	}
	return nil
}

func (k *kafkaConfig) Run(_ context.Context, s *command.Session, _ []string) error {
	c, err := k.client()
	if err != nil {
		return fmt.Errorf("find the embedded Kafka: %w", err)
	}
	if k.output == "json" {
		e := json.NewEncoder(s.Stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(c)
	}
	for i, f := range kafkaForms() {
		switch {
		case k.form == f.name:
			f.write(s.Stdout, c)
		case k.form == "":
			fmt.Fprintf(s.Stdout, "%s# %s (--for %s)\n", strings.Repeat("\n", min(i, 1)), f.use, f.name)
			f.write(s.Stdout, c)
		}
	}
	return nil
}

// kafkaClient has the settings of a program that connects to the embedded servers. Its JSON is the output of -o json.
type kafkaClient struct {
	Kafka             string `json:"kafka"`
	SecurityProtocol  string `json:"securityProtocol"`
	Mechanism         string `json:"mechanism"`
	User              string `json:"user"`
	Password          string `json:"password"`
	PasswordFile      string `json:"passwordFile"`
	Redis             string `json:"redis"`
	RedisPasswordFile string `json:"redisPasswordFile"`
}

// client reads the addresses and the password of the tidemill up of the data folder.
func (k *kafkaConfig) client() (kafkaClient, error) {
	running, found, err := platform.Find(k.data)
	switch {
	case err != nil:
		return kafkaClient{}, err
	case !found:
		return kafkaClient{}, fmt.Errorf("no tidemill up runs on the data folder %s: start it, or give its folder by --data", k.data)
	case !running.Embedded:
		return kafkaClient{}, fmt.Errorf("the tidemill up on the data folder %s uses the Kafka at %s, which is not embedded: connect as its operator says", k.data, running.Kafka)
	}
	folder, err := filepath.Abs(k.data)
	if err != nil {
		return kafkaClient{}, err
	}
	c := kafkaClient{Kafka: running.Kafka, SecurityProtocol: "SASL_PLAINTEXT", Mechanism: embedded.Mechanism, User: embedded.UserName,
		PasswordFile: embedded.KafkaPasswordFile(folder), Redis: running.Redis, RedisPasswordFile: embedded.RedisPasswordFile(folder)}
	password, err := os.ReadFile(c.PasswordFile)
	c.Password = string(bytes.TrimSpace(password))
	return c, err
}

// kafkaForm is a form in which programs take the settings.
type kafkaForm struct {
	name, use string
	write     func(io.Writer, kafkaClient)
}

func kafkaForms() []kafkaForm {
	return []kafkaForm{
		{"kcat", "kcat -F FILE, and clients built on librdkafka", func(w io.Writer, c kafkaClient) {
			fmt.Fprintf(w, "bootstrap.servers=%s\nsecurity.protocol=%s\nsasl.mechanism=%s\nsasl.username=%s\nsasl.password=%s\n",
				c.Kafka, c.SecurityProtocol, c.Mechanism, c.User, c.Password)
		}},
		{"java", "client.properties of Java clients and of Kafka's tools", func(w io.Writer, c kafkaClient) {
			fmt.Fprintf(w, "bootstrap.servers=%s\nsecurity.protocol=%s\nsasl.mechanism=%s\n"+
				"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\";\n",
				c.Kafka, c.SecurityProtocol, c.Mechanism, c.User, c.Password)
		}},
		{"env", "variables of tidemill's commands and processes", func(w io.Writer, c kafkaClient) {
			for _, v := range [][2]string{{"TIDEMILL_KAFKA", c.Kafka}, {"TIDEMILL_KAFKA_SASL", c.Mechanism}, {"TIDEMILL_KAFKA_USER", c.User},
				{"TIDEMILL_KAFKA_PASSWORD_FILE", c.PasswordFile}, {"TIDEMILL_REDIS", c.Redis}, {"TIDEMILL_REDIS_PASSWORD_FILE", c.RedisPasswordFile}} {
				fmt.Fprintf(w, "export %s=%s\n", v[0], show.Quoted(v[1]))
			}
		}},
	}
}
