package main

import (
	"hash/fnv"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// An advisory lock belongs to a connection, so each worker has one.
func postgresLock(address string) (func() (acquire, error), error) {
	return func() (acquire, error) {
		connection, err := pgx.Connect(ctx, address)
		return func(name string) (func() error, error) {
			hash := fnv.New64a()
			hash.Write([]byte(name))
			key := int64(hash.Sum64())
			release := func() error {
				_, err := connection.Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
				return err
			}
			_, err := connection.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
			return release, err
		}, err
	}, nil
}

// A mutex belongs to a session, so each worker has one. A session of 10 s: that is how long a dead holder keeps it.
func etcdLock(address string) (func() (acquire, error), error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	return func() (acquire, error) {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
		return func(name string) (func() error, error) {
			mutex := concurrency.NewMutex(session, name)
			return func() error { return mutex.Unlock(ctx) }, mutex.Lock(ctx)
		}, err
	}, err
}
