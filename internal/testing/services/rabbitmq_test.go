package services

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestRabbitMQKeepsMessagesWhenItIsKilled(t *testing.T) {
	r, err := StartRabbitMQ(t.Context(), Options{})
	if errors.Is(err, ErrNotInstalled) && !InCI() {
		t.Skip("no RabbitMQ on this machine: this test did not run")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	open := func() *amqp091.Channel {
		conn, err := amqp091.Dial(r.URL())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		ch, err := conn.Channel()
		require.NoError(t, err)
		return ch
	}
	ch := open()
	_, err = ch.QueueDeclare("q", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirm("", "q", true, false,
		amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("hello")})
	require.NoError(t, err)
	require.True(t, confirm.Wait())

	time.Sleep(3 * time.Second) // RabbitMQ confirms messages before it has written a new queue to the disk
	require.NoError(t, r.Kill())
	require.NoError(t, r.Restart(t.Context()))
	got, found, err := open().Get("q", true)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "hello", string(got.Body))
}
