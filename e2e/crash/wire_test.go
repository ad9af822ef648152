//go:build slow

package crash

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// kafkaWrites are the requests that change the log or a group's offsets.
var kafkaWrites = map[uint16]string{0: "produce", 8: "commit offsets", 26: "end transaction", 28: "commit offsets in transaction"}

// readKafka reads one request.
func readKafka(from *bufio.Reader) (message []byte, write string, err error) {
	size, err := from.Peek(4)
	if err != nil {
		return nil, "", err
	}
	n := binary.BigEndian.Uint32(size)
	if n < 2 || n > 100<<20 {
		return nil, "", fmt.Errorf("a request of %d bytes", n)
	}
	message = make([]byte, 4+n)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, "", err
	}
	return message, kafkaWrites[binary.BigEndian.Uint16(message[4:])], nil
}

// redisWrites are the commands that change data.
var redisWrites = []string{"EVAL", "EVALSHA", "SET", "SETEX", "PSETEX", "SETNX", "DEL", "UNLINK", "HSET", "HDEL", "HINCRBY", "INCR",
	"ZADD", "ZREM", "SADD", "SREM", "EXPIRE", "PEXPIRE", "MSET"}

// readRedis reads one command.
func readRedis(from *bufio.Reader) (message []byte, write string, err error) {
	var all bytes.Buffer
	n, err := readCount(from, &all, '*')
	if err != nil {
		return nil, "", err
	}
	for i := range n {
		size, err := readCount(from, &all, '$')
		if err != nil {
			return nil, "", err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(from, word); err != nil {
			return nil, "", err
		}
		all.Write(word)
		if i == 0 {
			write = redisWrite(string(word[:size]))
		}
	}
	return all.Bytes(), write, nil
}

func redisWrite(command string) string {
	for _, w := range redisWrites {
		if strings.EqualFold(w, command) {
			return strings.ToLower(w)
		}
	}
	return ""
}

func readCount(from *bufio.Reader, to *bytes.Buffer, kind byte) (int, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, errors.New("not what a Redis client says: " + strconv.Quote(line))
	}
	to.WriteString(line)
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
