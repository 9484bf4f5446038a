// The run-time compiler without torch, a device or Python.
#include "compiler/compile_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "compiler/entry_points.h"
#include "compiler/push_constants.h"
#include "compiler/sha256.h"
#include "compiler/written_memory.h"

namespace anymps::compiler {
namespace {

namespace fs = std::filesystem;

std::string kernel(const std::string& expression) {
    return "import own;\n"
           "[shader(\"compute\")] [numthreads(64, 1, 1)]\n"
           "void main_kernel(uint3 i : SV_DispatchThreadID, uniform float* a, uniform uint n)\n"
           "{\n    if (i.x < n) a[i.x] = " +
           expression + ";\n}\n";
}

// Folders of its own, which end with the test.
class CompileServiceTest : public testing::Test {
  protected:
    CompileServiceTest() : folder_(testing::TempDir() + "compile_service_" + std::to_string(getpid())) {
        fs::create_directories(folder_ / "sources");
        write(folder_ / "sources" / "own.slang", "public float twice(float x) { return x * 2; }\n");
    }
    ~CompileServiceTest() override { fs::remove_all(folder_); }

    static void write(const fs::path& file, const std::string& text) {
        std::ofstream(file, std::ios::binary) << text;
    }
    CompileService::Options options() const {
        return {.library = SLANG_LIBRARY,
                .folders = {folder_ / "sources"},
                .cache_folder = folder_ / "cache",
                .threads = 2};
    }
    std::vector<fs::path> cached(const std::string& extension) const {
        std::vector<fs::path> files;
        for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache")) {
            if (entry.path().extension() == extension) files.push_back(entry.path());
        }
        return files;
    }
    // What a new service answers, and whether Slang had to compile it.
    std::pair<CompileService::Words, bool> fresh(const std::string& source) const {
        CompileService service(options());
        CompileService::Words words = service.get(source);
        return {std::move(words), service.compilations() > 0};
    }

    const fs::path folder_;
};

size_t live_threads() {
    const fs::directory_iterator tasks("/proc/self/task");
    return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(CompileServiceTest, CompilesEachSourceOnce) {
    CompileService service(options());
    EXPECT_FALSE(service.version().empty());
    const std::string one = kernel("twice(a[i.x])"), other = kernel("twice(a[i.x]) + 1");
    service.start(one);
    service.start(other);
    service.start(one);
    EXPECT_EQ(service.get(one)[0], 0x07230203u);
    EXPECT_NE(service.get(one), service.get(other));
    EXPECT_EQ(&service.get(one), &service.get(one));
    EXPECT_EQ(service.compilations(), 2u);
}

TEST_F(CompileServiceTest, KeepsWhatItCompiledOnDisk) {
    const auto [words, compiled] = fresh(kernel("twice(a[i.x])"));
    EXPECT_TRUE(compiled);
    EXPECT_EQ(fresh(kernel("twice(a[i.x])")), std::pair(words, false));
    write(folder_ / "sources" / "own.slang", "public float twice(float x) { return x + x; }\n");
    EXPECT_TRUE(fresh(kernel("twice(a[i.x])")).second);
}

TEST_F(CompileServiceTest, ReplacesDamagedFiles) {
    const std::string source = kernel("twice(a[i.x])");
    const auto words = fresh(source).first;
    ASSERT_EQ(cached(".spv").size(), 1u);
    const fs::path file = cached(".spv").front();
    const auto size = fs::file_size(file);
    for (const std::string damage :
         {"", "anymps1\n", "anymps1\n and then something that is no kernel at all"}) {
        write(file, damage);
        EXPECT_EQ(fresh(source), std::pair(words, true));
        EXPECT_EQ(fs::file_size(file), size);
    }
    fs::resize_file(file, size - 1);
    EXPECT_EQ(fresh(source), std::pair(words, true));
    EXPECT_EQ(fresh(source), std::pair(words, false));
    EXPECT_EQ(cached(".spv").size(), 1u);  // and no temporary file
}

TEST_F(CompileServiceTest, SerializedModulesGiveTheSameWords) {
    const std::string source = kernel("twice(a[i.x])");
    const auto words = fresh(source).first;
    ASSERT_EQ(cached(".slang-module").size(), 1u);
    const fs::path module = cached(".slang-module").front();
    EXPECT_EQ(module.filename(), "own.slang-module");
    for (const bool damaged : {false, true}) {
        if (damaged) fs::resize_file(module, fs::file_size(module) / 2);
        fs::remove(cached(".spv").front());
        EXPECT_EQ(fresh(source), std::pair(words, true));
    }
}

TEST_F(CompileServiceTest, ErrorsAreThrownEachTime) {
    CompileService service(options());
    for (int i = 0; i < 2; ++i) {
        try {
            service.get(kernel("nothing"));
            FAIL();
        } catch (const std::runtime_error& error) {
            EXPECT_NE(std::string(error.what()).find("   5      if (i.x < n) a[i.x] = nothing;"),
                      std::string::npos)
                << error.what();
        }
    }
    EXPECT_FALSE(service.get(kernel("1")).empty());
}

TEST_F(CompileServiceTest, ThreadsEndWithoutWorkAndComeBack) {
    const size_t before = live_threads();
    CompileService::Options impatient = options();
    impatient.patience = std::chrono::seconds(1);  // a busy machine takes a while to come back from get()
    CompileService service(impatient);
    EXPECT_EQ(live_threads(), before);
    for (int i = 0; i < 2; ++i) {
        EXPECT_FALSE(service.get(kernel(std::to_string(i))).empty());
        EXPECT_GT(live_threads(), before);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (live_threads() > before && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_EQ(live_threads(), before);
    }
}

// The only thread is giving back its session when the work comes.
TEST_F(CompileServiceTest, WorkThatComesWhileAThreadEndsIsDone) {
    CompileService::Options impatient = options();
    impatient.threads = 1;
    impatient.patience = std::chrono::milliseconds(5);
    CompileService service(impatient);
    for (int i = 0; i < 10; ++i) {
        auto size =
            std::async(std::launch::async, [&] { return service.get(kernel(std::to_string(i))).size(); });
        const auto state = size.wait_for(std::chrono::seconds(60));
        if (state != std::future_status::ready) service.stop();  // else the future waits for ever
        ASSERT_EQ(state, std::future_status::ready);
        EXPECT_GT(size.get(), 0u);
        std::this_thread::sleep_for(std::chrono::milliseconds(5 + 2 * i));
    }
}

TEST_F(CompileServiceTest, StopsWithWorkLeft) {
    CompileService service(options());
    for (int i = 0; i < 50; ++i) service.start(kernel(std::to_string(i)));
    service.stop();
    EXPECT_LT(service.compilations(), 50u);
    EXPECT_THROW(service.get(kernel("49")), std::runtime_error);
    EXPECT_THROW(service.get(kernel("another")), std::runtime_error);
    service.stop();
}

TEST_F(CompileServiceTest, WhatCannotBeOpenedIsSaid) {
    CompileService::Options wrong = options();
    wrong.library = "/nonexistent.so";
    EXPECT_THROW(CompileService{wrong}, std::runtime_error);
    wrong.library = "libm.so.6";
    EXPECT_THROW(CompileService{wrong}, std::runtime_error);
    wrong = options();
    wrong.folders.push_back("/nonexistent");
    EXPECT_THROW(CompileService{wrong}, std::runtime_error);
}

TEST_F(CompileServiceTest, CountsPushConstants) {
    CompileService service(options());
    EXPECT_EQ(push_constant_bytes(service.get(kernel("1"))), 12u);
    const std::string source =
        "struct Inner { float3 v; uint16_t h[5]; };\n"
        "struct Args { float* a; Inner inner; int64_t n; };\n"
        "[shader(\"compute\")] [numthreads(1, 1, 1)]\n"
        "void main_kernel(uniform Args args) { args.a[args.n] = args.inner.v.z + float(args.inner.h[4]); }\n";
    // The vector is at a multiple of 16, and so is what follows its struct.
    EXPECT_EQ(push_constant_bytes(service.get(source)), 56u);
    EXPECT_THROW(push_constant_bytes(std::vector<uint32_t>{1, 2, 3, 4, 5, 0}), std::runtime_error);
}

TEST_F(CompileServiceTest, CompilesAllEntryPoints) {
    const std::string source =
        "[shader(\"compute\")] [numthreads(4, 2, 1)] void second(uniform float* a, uniform uint n) { a[n] = "
        "1; }\n"
        "float one() { return 1; }\n"
        "[shader(\"compute\")] [numthreads(8, 1, 1)] void first(uniform half h, uniform int8_t i, uniform "
        "float3 v,\n"
        "    uniform float x[2], uniform half4* p, uniform BFloat16* b) { p[i].x = h * half(v.y + x[1] + "
        "float(b[0])); }\n";
    const auto check = [&] {
        CompileService service(options());
        const std::vector<EntryPoint> points = unpack_entry_points(service.get_all(source));
        ASSERT_EQ(points.size(), 2u);
        EXPECT_EQ(points[0].name, "second");
        EXPECT_EQ(points[1].name, "first");
        const std::vector<PushConstant> few = push_constants(points[0].words),
                                        all = push_constants(points[1].words);
        ASSERT_EQ(few.size(), 2u);
        EXPECT_TRUE(few[0].is_address && few[0].kind == ScalarKind::floating && few[0].bits == 32);
        EXPECT_TRUE(!few[1].is_address && few[1].kind == ScalarKind::uint && few[1].offset == 8);
        ASSERT_EQ(all.size(), 6u);
        EXPECT_TRUE(all[0].bits == 16 && all[0].bytes == 2 && !all[0].is_bfloat);
        EXPECT_TRUE(all[1].kind == ScalarKind::sint && all[1].bits == 8);
        EXPECT_TRUE(all[2].bytes == 12 && all[2].offset == 16);
        EXPECT_TRUE(all[3].bytes == 8 && all[3].kind == ScalarKind::floating);
        EXPECT_TRUE(all[4].is_address && all[4].bits == 16);
        EXPECT_TRUE(all[5].is_address && all[5].is_bfloat);
    };
    check();
    check();  // from the disk
    EXPECT_EQ(cached(".spvs").size(), 1u);
    CompileService service(options());
    EXPECT_TRUE(unpack_entry_points(service.get_all("float one() { return 1; }")).empty());
    EXPECT_THROW(service.get(source), std::runtime_error);  // no main_kernel
    EXPECT_THROW(unpack_entry_points(std::vector<uint32_t>{2, 9}), std::runtime_error);
}

TEST_F(CompileServiceTest, FindsWhatIsWritten) {
    CompileService service(options());
    // The parameters are a, b, c, d: four pointers to float.
    const auto written = [&](const std::string& before, const std::string& statements) {
        const std::string source = before +
                                   "\n[shader(\"compute\")] [numthreads(1, 1, 1)]\n"
                                   "void f(uniform float* a, uniform float* b, uniform float* c, uniform "
                                   "int* d, uint3 i : SV_GroupID)\n{\n" +
                                   statements + "\n}\n";
        return written_parameters(unpack_entry_points(service.get_all(source))[0].words);
    };
    EXPECT_EQ(written("", "a[i.x] = b[d[i.x]] + c[0];"), 0b0001u);
    EXPECT_EQ(written("", "float x = a[0]; x += b[1]; d[2] = int(x);"), 0b1000u);
    EXPECT_EQ(written("", "InterlockedAdd(d[0], int(a[0]));"), 0b1000u);
    EXPECT_EQ(written("", "float* p = i.x > 3 ? a : b; p[1] = c[0];"), 0b0011u);
    EXPECT_EQ(written("", "float* p = a; for (int k = 0; k < d[0]; ++k) p = p + 1; *p = b[0];"), 0b0001u);
    EXPECT_EQ(written("", "uint64_t p = uint64_t(c) + 4 * i.x; *(float*)p = a[0];"), 0b0100u);
    EXPECT_EQ(
        written("struct S { float* x; float* y; };", "S s = { a, b }; s.x = c; s.x[0] = s.y[0];") & 0b1100,
        0b0100u);
    EXPECT_EQ(written("[noinline] void put(float* p, float v) { p[1] = v; }", "put(b, a[0]);"), 0b0010u);
    EXPECT_EQ(written("[noinline] float* pick(float* p, float* q, uint i) { return i > 1 ? p : q; }",
                      "*pick(a, c, i.x) = b[0];"),
              0b0101u);
    EXPECT_EQ(written("[noinline] void move(inout float* p, float* q) { p = q + 1; }",
                      "float* p = a; move(p, b); p[0] = c[0];") &
                  0b1110,
              0b0010u);
    EXPECT_EQ(
        written("groupshared float s[4];", "s[i.x] = a[0]; GroupMemoryBarrierWithGroupSync(); b[0] = s[1];"),
        0b0010u);
    EXPECT_EQ(written("", "a[0] + b[0];"), 0u);
}

TEST(Sha256Test, KnownDigests) {
    EXPECT_EQ(Sha256().finish_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(Sha256().add("abc").finish_hex(),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const std::string million(1000000, 'a');
    Sha256 pieces;
    for (size_t at = 0; at < million.size(); at += 777) pieces.add(std::string_view(million).substr(at, 777));
    EXPECT_EQ(pieces.finish_hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace anymps::compiler
