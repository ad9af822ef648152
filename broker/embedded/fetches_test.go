package embedded

import "testing"

// Even an answer with little room lists the aborted transactions.
func TestFetchOfLittleRoomNamesTheAborted(t *testing.T) {
	s := start(t, Options{})
	must(t, createTopic(t, kafkaClient(t, s.Kafka()), "a"))
	writeInTransaction(t, s.Kafka())
	writeInTransaction(t, s.Kafka()) // aborts the earlier transaction
	part := fetchCommittedUpTo(t, s.Kafka(), 1)
	if len(part.RecordBatches) == 0 {
		t.Fatal("there is not even the first batch")
	}
	if n := len(part.AbortedTransactions); n != 1 || part.AbortedTransactions[0].FirstOffset != 0 {
		t.Errorf("aborted are %v, want what begins at 0", part.AbortedTransactions)
	}
}
