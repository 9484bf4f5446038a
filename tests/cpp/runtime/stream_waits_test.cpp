#include "runtime/stream_waits.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/buffer.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {
namespace {

TEST(StreamWaits, WhatIsRecordedLaterRunsAfterTheSignal) {
    const auto semaphore = std::make_shared<const vulkan::TimelineSemaphore>(device());
    const uint64_t earlier = encoder().submit();
    hold_stream({semaphore, 3});
    hold_stream({semaphore, 2});  // the larger value counts
    const uint64_t later = encoder().submit();
    EXPECT_GT(later, earlier);
    encoder().wait(earlier);
    semaphore->signal(2);
    EXPECT_FALSE(encoder().completed(later));
    semaphore->signal(3);
    encoder().wait(later);
    EXPECT_TRUE(StreamWaits::instance().empty());
}

TEST(StreamWaits, AFailureIsRaisedByOneSynchronization) {
    StreamWaits::instance().fail(std::make_exception_ptr(std::runtime_error("the first")));
    StreamWaits::instance().fail(std::make_exception_ptr(std::runtime_error("the second")));
    try {
        encoder().synchronize();
        FAIL() << "nothing was raised";
    } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the first");
    }
    encoder().synchronize();
}

}  // namespace
}  // namespace anymps::runtime
