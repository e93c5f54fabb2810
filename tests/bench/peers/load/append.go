package main

import "time"

// runAppend measures appends in a closed loop: each client sends the next one when one is acknowledged.
func runAppend(o *options, s system) (*result, error) {
	if err := s.createTopic(); err != nil {
		return nil, err
	}
	var appenders []appender
	depth := 1
	for client := range o.clients {
		opened, err := s.openAppenders(client)
		if err != nil {
			return nil, err
		}
		depth = depthOf(opened, o.inFlight)
		appenders = append(appenders, opened...)
	}
	for _, a := range appenders { // one append each, so that connections are open when the time starts
		defer a.close()
		if err := a.send(now()); err != nil {
			return nil, err
		}
		if err := a.receive(); err != nil {
			return nil, err
		}
	}
	before, started := usageNow(o), time.Now()
	todo := workFor(o.seconds)
	waited, err := together(len(appenders), func(number int) ([]int64, error) { return drive(appenders[number], depth, todo) })
	if err != nil {
		return nil, err
	}
	figures := &result{Records: len(waited) * o.batch, Seconds: time.Since(started).Seconds()}
	figures.addUsage(before, usageNow(o))
	figures.addLatencies(waited)
	return figures, nil
}
