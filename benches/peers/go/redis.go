package main

import (
	"context"
	"errors"
	"math"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var ctx = context.Background()

// One key for each lock, as there is one server; its default is a majority of three keys. The rest as it comes.
func rueidisLock(address string) (func() (acquire, error), error) {
	option := rueidis.ClientOption{InitAddress: []string{address}}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option, KeyMajority: 1})
	lock := func(name string) (func() error, error) {
		_, cancel, err := locker.WithContext(ctx, name)
		return func() error { cancel(); return nil }, err
	}
	return func() (acquire, error) { return lock, nil }, err
}

func client(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, PoolSize: 64})
}

func redsyncLock(address string) (func() (acquire, error), error) {
	sync := redsync.New(goredis.NewPool(client(address)))
	tries, delay := redsync.WithTries(math.MaxInt), redsync.WithRetryDelay(pause)
	lock := func(name string) (func() error, error) {
		mutex := sync.NewMutex(name, redsync.WithExpiry(lease), tries, delay)
		return func() error { _, err := mutex.Unlock(); return err }, mutex.Lock()
	}
	return func() (acquire, error) { return lock, nil }, nil
}

func redisLock(address string) (func() (acquire, error), error) {
	locker := redislock.New(client(address))
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
	lock := func(name string) (func() error, error) {
		// Each call gives up after one lease.
		held, err := locker.Obtain(ctx, name, lease, options)
		for errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
			held, err = locker.Obtain(ctx, name, lease, options)
		}
		return func() error { return held.Release(ctx) }, err
	}
	return func() (acquire, error) { return lock, nil }, nil
}
